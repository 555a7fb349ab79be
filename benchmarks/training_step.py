"""What TapNet's head costs: a training step beside the bare backbone's on the same images, as a ratio.

Forward, loss, backward; 20-way 5-shot 8-query, Conv4, 28×28. The two take turns, so that whatever else the machine does
meets both; the ratio is the median over the pairs.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable

import torch
from pairs import Row, compared
from torch import Tensor
from torch.nn import functional as F

from tapnet.backbones import make_backbone
from tapnet.data.batches import class_labels
from tapnet.hardware import describe, keep_freed_memory, resolve_precision
from tapnet.methods import TapNet

WAY, SHOT, QUERY = 20, 5, 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backbone", default="conv4")
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()

    keep_freed_memory()  # as training and embedding do
    device = torch.device("cpu")
    precision = resolve_precision("auto", device)
    (row,) = rows(args.backbone, (args.channels, args.size, args.size), args.pairs)
    result = {
        "ratio": row.ratio,
        "tapnet_seconds": row.first,
        "backbone_seconds": row.second,
        "pairs": args.pairs,
        "network": f"{args.backbone} {args.channels}×{args.size}×{args.size}",
        "episode": f"{WAY}-way {SHOT}-shot {QUERY}-query",
        "hardware": describe(device, precision),
    }
    if args.json:
        print(json.dumps(result))
        return
    print(f"{result['network']}, {result['episode']}, {precision}, median of {args.pairs} pairs")
    print(f"  bare backbone   {1000 * result['backbone_seconds']:8.1f} ms")
    print(f"  TapNet          {1000 * result['tapnet_seconds']:8.1f} ms")
    print(f"  ratio           {row.ratio:8.3f}")


def rows(backbone: str, shape: tuple[int, int, int], pairs: int = 7, rounds: int = 1) -> list[Row]:
    precision = resolve_precision("auto", torch.device("cpu"))
    bare, whole = steps(shape, backbone, precision)
    a, b, ratio = compared(lambda: whole().backward(), lambda: bare().backward(), rounds * pairs)
    name = f"step: TapNet / bare backbone, {backbone} {'×'.join(map(str, shape))}, {precision}"
    return [Row(name, ratio, "at most 1.03", a, b, f"{1000 * a:.0f} ms against {1000 * b:.0f} ms")]


def compiled_rows(backbone: str, shape: tuple[int, int, int], pairs: int = 7) -> list[Row]:
    """What `torch.compile` makes of the backbone's step; it is compiled before the first pair."""
    precision = resolve_precision("auto", torch.device("cpu"))
    bare, _ = steps(shape, backbone, precision)
    compiled = torch.compile(bare)
    a, b, ratio = compared(lambda: compiled().backward(), lambda: bare().backward(), pairs)
    name = f"step: compiled / eager backbone, {backbone} {'×'.join(map(str, shape))}, {precision}"
    return [Row(name, ratio, "below 1, to be of use", a, b, f"{1000 * a:.0f} ms against {1000 * b:.0f} ms")]


def steps(
    shape: tuple[int, int, int], backbone: str, precision: str
) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    """Forward and loss of the bare backbone and of TapNet over it, on the same images."""
    torch.manual_seed(0)
    method = TapNet(make_backbone(backbone, shape), num_references=WAY).train()
    method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.rand(WAY * (SHOT + QUERY), *shape).to(memory_format=torch.channels_last)
    support, query = images.split([WAY * SHOT, WAY * QUERY])
    support_labels, query_labels = class_labels(WAY, SHOT), class_labels(WAY, QUERY)

    def autocast() -> torch.autocast:
        return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")

    def bare() -> Tensor:
        with autocast():
            features: Tensor = method.backbone(torch.cat([support, query]))
        return features.float().square().mean()

    def whole() -> Tensor:
        with autocast():
            logits = method(support, support_labels, query)
        return F.cross_entropy(logits, query_labels)

    return bare, whole


if __name__ == "__main__":
    main()

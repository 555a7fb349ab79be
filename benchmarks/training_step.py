"""What TapNet's head costs: a training step beside the bare backbone's on the same images, as a ratio.

Forward, loss, backward; 20-way 5-shot 8-query.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from pairs import Row, compared
from torch import Tensor
from torch.nn import functional as F

from tapnet.backbones import make_backbone
from tapnet.data.batches import class_labels
from tapnet.hardware import resolve_precision
from tapnet.methods import TapNet

WAY, SHOT, QUERY = 20, 5, 8


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

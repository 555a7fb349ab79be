"""What was tried to make a training step faster, each beside the step without it: `python benchmarks/tried.py WHAT`.

Forward and backward of the backbone over an episode of 20-way 5-shot 8-query in float32, or 20 steps of the optimizer.
The ratio is the time without / the time with: above 1 helps. CPU seconds of one thread, for machines that are busy.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import pairs
import torch
from training_step import QUERY, SHOT, WAY

from tapnet.backbones import Backbone, make_backbone
from tapnet.hardware import keep_freed_memory
from tapnet.methods import TapNet

Build = Callable[[], Backbone]
IMAGES = WAY * (SHOT + QUERY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=TRIED)
    parser.add_argument("--backbone", default="conv4")
    parser.add_argument("--size", type=int, default=28)
    parser.add_argument("--channels", type=int, default=1)
    parser.add_argument("--widths", type=int, nargs="+", help="of the backbone's blocks (default: the backbone's own)")
    parser.add_argument("--pairs", type=int, default=7)
    args = parser.parse_args()
    torch.set_num_threads(1)
    pairs.clock = pairs.cpu_seconds
    shape = (args.channels, args.size, args.size)
    keep_freed_memory()
    options = {"widths": args.widths} if args.widths else {}
    without, with_it = TRIED[args.what](lambda: make_backbone(args.backbone, shape, **options))
    a, b, ratio = pairs.compared(without, with_it, args.pairs)
    network = f"{args.backbone} {'×'.join(map(str, shape))}"
    print(f"{args.what}, {network}: {1000 * a:.1f} ms without, {1000 * b:.1f} ms with, ratio {ratio:.3f}")
    if not args.what.endswith("adam"):
        print(f"images a second: {IMAGES / a:.1f} without, {IMAGES / b:.1f} with")


def _channels_last(build: Build) -> tuple[pairs.Work, pairs.Work]:
    return _bare(build, torch.contiguous_format), _bare(build, torch.channels_last)


def _bare(build: Build, layout: torch.memory_format) -> pairs.Work:
    torch.manual_seed(0)
    network = build().train().to(memory_format=layout)  # type: ignore[call-overload]
    images = torch.rand(IMAGES, *network.image_shape).to(memory_format=layout)
    return lambda: network(images).square().mean().backward()


def _adam(**options: bool) -> Callable[[Build], tuple[pairs.Work, pairs.Work]]:
    """The optimizer's step alone, beside a loop over the parameters."""

    def both(build: Build) -> tuple[pairs.Work, pairs.Work]:
        return _adam_step(build, foreach=False), _adam_step(build, **options)

    return both


def _adam_step(build: Build, **options: Any) -> pairs.Work:
    method = TapNet(build(), num_references=WAY)
    for parameter in method.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer = torch.optim.AdamW(method.parameters(), **options)
    return lambda: [optimizer.step() for _ in range(20)]


TRIED: dict[str, Callable[[Build], tuple[pairs.Work, pairs.Work]]] = {
    "channels-last": _channels_last,
    "foreach-adam": _adam(foreach=True),
    "fused-adam": _adam(fused=True),
}

if __name__ == "__main__":
    main()

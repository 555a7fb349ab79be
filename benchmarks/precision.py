"""What bf16 costs in accuracy: a recipe trained in float32 and in bf16 by each seed, and the paired difference.

python benchmarks/precision.py                           the quickdraw recipe, three seeds
python benchmarks/precision.py --episodes 4 --seeds 0 1  only to see that it runs

On hardware without bf16 instructions, which PyTorch replaces by very slow code, the arithmetic stays in float32 and
what would be stored in bf16 is rounded to it, forward and backward: as with the instructions, which add up in float32.
That is all of Conv4; of a ResNet the sums and averages are not rounded. Validation, which chooses the checkpoint, is in
float32 then.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from scipy.stats import t as student
from torch import Tensor, nn

from tapnet.checkpoint import load
from tapnet.data.episodes import EpisodeSpec
from tapnet.evaluation.evaluator import Evaluator
from tapnet.hardware import resolve_device, resolve_precision
from tapnet.recipe import Recipe, load_recipe
from tapnet.training import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="quickdraw")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, help="of training (default: as the recipe says)")
    args = parser.parse_args()
    if len(args.seeds) < 2:
        parser.error("an interval needs at least 2 seeds")
    device = resolve_device()
    rounds = resolve_precision("auto", device) != "bf16"
    print("bf16 by rounding: no such instructions here" if rounds else "bf16 by the hardware's instructions")
    changes = [] if args.episodes is None else [f"training.episodes={args.episodes}"]
    differences = []
    for seed in args.seeds:
        recipe = load_recipe(args.recipe, [*changes, f"seed={seed}"])
        if rounds and recipe.training.frozen_backbone:
            parser.error("over a frozen backbone nothing would be rounded: run it on hardware with bf16 instructions")
        full = _accuracy(recipe, "float32", device)
        with rounded_layers() if rounds else nullcontext():
            half = _accuracy(recipe, "float32" if rounds else "bf16", device)
        differences.append(100 * (half - full))
        print(
            f"seed {seed}: float32 {100 * full:.2f}%, bf16 {100 * half:.2f}%, difference {differences[-1]:+.2f}",
            flush=True,
        )
    half_width = student.ppf(0.975, len(differences) - 1) * np.std(differences, ddof=1) / len(differences) ** 0.5
    print(f"bf16 - float32: {np.mean(differences):+.2f} ± {half_width:.2f} points (95%, Student, over seeds)")


@contextmanager
def rounded_layers() -> Iterator[None]:
    """Convolutions and batch normalizations of training take and give what bf16 can hold; so do their gradients."""
    convolve, normalize = nn.Conv2d._conv_forward, nn.BatchNorm2d.forward

    def convolved(layer: nn.Conv2d, images: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if layer.training:
            return _rounded(convolve(layer, _rounded(images), _rounded(weight), bias))
        result: Tensor = convolve(layer, images, weight, bias)
        return result

    def normalized(layer: nn.BatchNorm2d, images: Tensor) -> Tensor:
        result = normalize(layer, images)
        return _rounded(result) if layer.training else result

    with patch.object(nn.Conv2d, "_conv_forward", convolved), patch.object(nn.BatchNorm2d, "forward", normalized):
        yield


def _rounded(values: Tensor) -> Tensor:
    result: Tensor = _Rounded.apply(values)  # type: ignore[no-untyped-call]
    return result


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:  # noqa: ARG004
        return values.bfloat16().float()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:  # noqa: ARG004
        return gradient.bfloat16().float()


def _accuracy(recipe: Recipe, precision: str, device: torch.device) -> float:
    """On test classes, evaluated in float32 on the same episodes for both."""
    task = recipe.validation
    with tempfile.TemporaryDirectory() as folder:
        train(recipe, Path(folder) / "run", device.type, precision)
        method = load(Path(folder) / "run", device)
    return float(
        Evaluator(method, recipe.data.images("test"))
        .accuracies(EpisodeSpec(task.way, task.shot, task.query, 2000))
        .mean()
    )


if __name__ == "__main__":
    main()

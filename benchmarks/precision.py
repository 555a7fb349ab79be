"""What bf16 costs in accuracy: a recipe trained in float32 and in bf16 by each seed, and the paired difference.

python benchmarks/precision.py                                          the quickdraw recipe, three seeds
python benchmarks/precision.py --episodes 4 --seeds 0 1 --any-hardware  only to see that it runs
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from scipy.stats import t as student

from tapnet.checkpoint import load
from tapnet.evaluation import Evaluator
from tapnet.hardware import resolve_device, resolve_precision
from tapnet.recipe import Recipe, load_recipe
from tapnet.training import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="quickdraw")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--episodes", type=int, help="of training (default: as the recipe says)")
    parser.add_argument("--any-hardware", action="store_true", help="also where bf16 is emulated")
    args = parser.parse_args()
    if len(args.seeds) < 2:
        parser.error("an interval needs at least 2 seeds")
    device = resolve_device()
    if resolve_precision("auto", device) != "bf16" and not args.any_hardware:
        parser.error("not run (no bf16 instructions on this CPU); --any-hardware emulates them, slowly")
    changes = [] if args.episodes is None else [f"training.episodes={args.episodes}"]
    differences = []
    for seed in args.seeds:
        recipe = load_recipe(args.recipe, [*changes, f"seed={seed}"])
        full, half = (_accuracy(recipe, precision, device) for precision in ("float32", "bf16"))
        differences.append(100 * (half - full))
        print(f"seed {seed}: float32 {100 * full:.2f}%, bf16 {100 * half:.2f}%, difference {differences[-1]:+.2f}")
    half_width = student.ppf(0.975, len(differences) - 1) * np.std(differences, ddof=1) / len(differences) ** 0.5
    print(f"bf16 - float32: {np.mean(differences):+.2f} ± {half_width:.2f} points (95%, Student, over seeds)")


def _accuracy(recipe: Recipe, precision: str, device: torch.device) -> float:
    """On test classes, evaluated in float32 on the same episodes for both."""
    task = recipe.validation
    with tempfile.TemporaryDirectory() as folder:
        train(recipe, Path(folder) / "run", device.type, precision)
        method = load(Path(folder) / "run", device)
    return float(Evaluator(method, recipe.data.images("test")).accuracies(task.way, task.shot, task.query, 2000).mean())


if __name__ == "__main__":
    main()

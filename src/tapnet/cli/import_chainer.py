"""`tapnet import-chainer FILE --out DIR`: a checkpoint of the authors' Chainer code as one of ours."""

from __future__ import annotations

import argparse
from pathlib import Path

from tapnet.cli.progress import OUT

_EXAMPLES = """examples:
  tapnet import-chainer save/TapNet_miniImageNet_ResNet12 --out runs/authors
  tapnet import-chainer save/TapNet_tieredImageNet_ResNet12 --recipe tiered-imagenet-5shot --out runs/tiered
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("file", type=Path, help="a file of Chainer's save_npz, with the ResNet-12")
    parser.add_argument("--out", type=Path, required=True, help="the folder to write, such as runs/authors")
    parser.add_argument("--recipe", default="mini-imagenet-5shot", help="how it was trained (default: %(default)s)")
    parser.add_argument("--image-size", type=int, default=84, help="height and width of its images (default: 84)")


def run(args: argparse.Namespace) -> None:
    from tapnet.paper.chainer import import_chainer
    from tapnet.paths import BEST, LAST
    from tapnet.recipe import load_recipe

    if any((args.out / name).exists() for name in (BEST, LAST)):
        raise FileExistsError(f"{args.out} already holds a run: choose another --out.")
    checkpoint = import_chainer(args.file, load_recipe(args.recipe), args.image_size)
    checkpoint.write(args.out / BEST)
    recipe = checkpoint.header.recipe
    channels, height, width = checkpoint.header.image_shape
    bias = " with a bias" if "reference_bias" in checkpoint.weights else ""
    OUT.print(
        f"{args.out / BEST}: {recipe.backbone.name} for images of {channels}×{height}×{width}, {recipe.training.way} "
        f"references{bias}.\nTry: tapnet evaluate {args.out}"
    )

"""`tapnet explain TASK IMAGE`: why the task classifies an image as it does, in words and as a figure."""

from __future__ import annotations

import argparse
from pathlib import Path

from tapnet.cli.options import FIGURES, add_network, input_path, output_file
from tapnet.cli.progress import OUT
from tapnet.inference.task_path import check_task_path

_SHOWN = 5  # classes
_EXAMPLES = """examples:
  tapnet explain birds.task photo.jpg --out why.png
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("task", type=input_path, help="a task file")
    parser.add_argument("image", type=input_path, help="the image to explain")
    out = output_file(*FIGURES)
    parser.add_argument("--out", type=out, default=Path("why.png"), help="the figure to save (default: why.png)")
    add_network(parser, device=False)


def run(args: argparse.Namespace) -> None:
    check_task_path(args.task)
    from tapnet.inference import explain, read_task

    explanation = explain(read_task(args.task), args.image, args.network)
    explanation.figure(args.out)
    OUT.print(f"{explanation.label}, {100 * explanation.ranked[0][1]:.1f}%")
    for name, probability in explanation.ranked[1:_SHOWN]:
        OUT.print(f"  {100 * probability:5.1f}%  {name}")
    similar = ", ".join(f"{each.label} ({each.similarity:.2f})" for each in explanation.nearest)
    OUT.print(f"Most similar examples: {similar}")
    if explanation.reason:
        OUT.print(explanation.reason)
    OUT.print(f"Figure: {args.out}")

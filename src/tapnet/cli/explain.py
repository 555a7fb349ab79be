"""`tapnet explain TASK PICTURE`: a picture of why the task says what it says."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from tapnet.cli.options import PICTURES, output_file
from tapnet.cli.pictures import network_of

_EXAMPLES = """examples:
  tapnet explain birds.task photo.jpg --out why.png
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("task", type=Path, help="a task file")
    parser.add_argument("picture", type=Path, help="the picture to explain")
    out = output_file(*PICTURES)
    parser.add_argument("--out", type=out, default=Path("why.png"), help="file to draw into (default: why.png)")
    parser.add_argument("--network", help="the checkpoint of the task, where it lies elsewhere now")


def run(args: argparse.Namespace) -> None:
    from tapnet.data.source import Unreadable
    from tapnet.inference.explanation import explanation_figure
    from tapnet.inference.images import read_picture, shown_picture
    from tapnet.inference.task import adapted_head
    from tapnet.inference.task_file import read_task

    task = read_task(args.task)
    network = network_of(task, args.network, "cpu")
    example = read_picture(args.picture, network.image_preprocessing)
    if isinstance(example, Unreadable):
        raise ValueError(f"{args.picture} cannot be read: {example.reason}.")
    head = adapted_head(task.examples, network, task.method, task.options)
    explanation_figure(task, head, shown_picture(args.picture), network.embed([example.pixels]), args.out)
    Console(highlight=False, soft_wrap=True).print(f"Picture: {args.out}")

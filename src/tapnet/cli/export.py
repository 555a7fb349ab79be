"""`tapnet export TASK --onnx FILE`: the whole classifier as one ONNX file."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from tapnet.cli.options import output_file
from tapnet.cli.pictures import network_of

_EXAMPLES = """examples:
  tapnet export birds.task --onnx birds.onnx
  tapnet predict birds.onnx new_photos/
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("task", type=Path, help="a task file")
    parser.add_argument(
        "--onnx", type=output_file(".onnx"), required=True, help="the file to write, such as birds.onnx"
    )
    parser.add_argument("--network", help="the checkpoint of the task, where it lies elsewhere now")


def run(args: argparse.Namespace) -> None:
    from tapnet.inference.onnx_export import export_onnx
    from tapnet.inference.task_file import read_task

    task = read_task(args.task)
    network = network_of(task, args.network, "cpu")
    export_onnx(task, network, args.onnx)
    shape = "×".join(map(str, ("n", *network.image_preprocessing.shape)))
    Console(highlight=False, soft_wrap=True).print(
        f"{args.onnx}: input `images` uint8 {shape}, output `probabilities` n×{len(task.classes)}; class names and "
        f"preprocessing in its metadata.\nTry: tapnet predict {args.onnx} PICTURES"
    )

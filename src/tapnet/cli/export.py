"""`tapnet export TASK --onnx FILE`: the whole classifier as one ONNX file."""

from __future__ import annotations

import argparse

from tapnet.cli.options import add_network, input_path, output_file
from tapnet.cli.progress import OUT
from tapnet.inference.task_path import check_task_path

_EXAMPLES = """examples:
  tapnet export birds.task --onnx birds.onnx
  tapnet predict birds.onnx new_photos/
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("task", type=input_path, help="a task file")
    parser.add_argument(
        "--onnx", type=output_file(".onnx"), required=True, help="the file to write, such as birds.onnx"
    )
    add_network(parser, device=False)


def run(args: argparse.Namespace) -> None:
    check_task_path(args.task)
    from tapnet.inference import export, open_predictor, read_task

    export(read_task(args.task), args.onnx, args.network)
    written = open_predictor(args.onnx)
    shape = "×".join(map(str, ("n", *written.preprocessing.shape)))
    OUT.print(
        f"{args.onnx}: input `images` uint8 {shape}, output `probabilities` n×{len(written.classes)}; class names and "
        "preprocessing in its metadata."
    )
    OUT.print(f"Try: tapnet predict {args.onnx} IMAGES")

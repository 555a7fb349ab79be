"""`tapnet info FILE`: what a task, checkpoint or ONNX file holds."""

from __future__ import annotations

import argparse
import json
from typing import Any

from tapnet.cli.options import input_path
from tapnet.cli.progress import OUT

_EXAMPLES = """examples:
  tapnet info birds.task
  tapnet info runs/mine                         the best checkpoint of a run
  tapnet info drawings                          a bundled checkpoint
  tapnet info birds.onnx --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("file", type=input_path, help="a task, checkpoint, ONNX file, run folder or bundled network")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> None:
    from tapnet.inference import describe

    described = describe(args.file)
    if args.json:
        print(json.dumps(described, ensure_ascii=False))
        return
    width = max(map(len, described))
    for name, value in described.items():
        for row, text in enumerate(_lines(name, value)):
            OUT.print(f"{name if row == 0 else '':<{width}}  {text}")


def _lines(name: str, value: Any) -> list[str]:
    if name == "classes":
        counts = (f"{each}: {count}" for each, count in value.items()) if isinstance(value, dict) else value
        return [str(len(value)), *counts]
    if isinstance(value, dict):
        return [f"{key}: {_text(each)}" for key, each in value.items()] or ["none"]
    return [", ".join(map(str, value)) or "none" if isinstance(value, list) else _text(value)]


def _text(value: Any) -> str:
    return "none" if value in (None, "") else format(value, {float: ".4g", int: ","}.get(type(value), ""))

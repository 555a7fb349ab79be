"""`tapnet remove TASK CLASS-OR-IMAGE …`: remove classes, or single examples."""

from __future__ import annotations

import argparse
from pathlib import Path

from tapnet.cli.options import add_network, input_path
from tapnet.cli.progress import OUT
from tapnet.errors import UserError
from tapnet.inference.task_path import check_task_path
from tapnet.text import pluralize

_EXAMPLES = """examples:
  tapnet remove birds.task wren                 a class
  tapnet remove birds.task wren/blurred.jpg     one example, recognized by its content
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("task", type=input_path, help="a task file; it is replaced")
    parser.add_argument("what", nargs="+", help="classes or images")
    add_network(parser, device=False)


def run(args: argparse.Namespace) -> None:
    check_task_path(args.task)
    from tapnet.inference import read_task, remove
    from tapnet.inference.task_file import file_version, replace_task

    version, task = file_version(args.task), read_task(args.task)
    classes = [name for name in args.what if name in task.classes]
    images = [name for name in args.what if name not in task.classes]
    if strange := [name for name in images if not Path(name).is_file()]:
        raise UserError(f"{strange[0]!r} is neither a class of the task ({', '.join(task.classes)}) nor an image.")
    smaller = remove(task, classes, images, args.network)
    replace_task(smaller, args.task, version)
    removed = len(task.examples) - len(smaller.examples)
    gone = [name for name in task.classes if name not in smaller.classes]
    OUT.print(f"{pluralize(removed, 'image')} removed, {len(smaller.classes)} classes left: {args.task}")
    if gone:
        OUT.print(f"The task no longer has the {'class' if len(gone) == 1 else 'classes'} {', '.join(gone)}.")

"""`tapnet remove TASK CLASS-OR-PICTURE …`: forget a class, or single examples."""

from __future__ import annotations

import argparse
import hashlib
from pathlib import Path

from rich.console import Console

from tapnet.cli.pictures import network_of
from tapnet.wording import pluralize

_EXAMPLES = """examples:
  tapnet remove birds.task wren                 a class
  tapnet remove birds.task wren/blurred.jpg     one example, recognised by its content
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("task", type=Path, help="a task file; it is replaced")
    parser.add_argument("what", nargs="+", help="classes or pictures")
    parser.add_argument("--network", help="the checkpoint of the task, where it lies elsewhere now")


def run(args: argparse.Namespace) -> None:
    from tapnet.inference.task import without
    from tapnet.inference.task_file import read_task, write_task

    task = read_task(args.task)
    network = network_of(task, args.network, "cpu")
    labels = {task.classes.index(name) for name in args.what if name in task.classes}
    pictures = {_digest(name, task.classes): name for name in args.what if name not in task.classes}
    strangers = [name for digest, name in pictures.items() if digest not in task.examples.hashes]
    if strangers:
        raise ValueError(f"{strangers[0]} is no example of {args.task}.")
    smaller = without(task, lambda label, digest: label in labels or digest in pictures, network)
    write_task(smaller, args.task)
    gone = len(task.examples) - len(smaller.examples)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{pluralize(gone, 'picture')} removed, {len(smaller.classes)} classes left: {args.task}")


def _digest(name: str, classes: tuple[str, ...]) -> str:
    if not Path(name).is_file():
        raise ValueError(f"{name!r} is neither a class of the task ({', '.join(classes)}) nor a picture.")
    return hashlib.sha256(Path(name).read_bytes()).hexdigest()

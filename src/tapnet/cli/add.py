"""`tapnet add TASK PICTURES`: another class, or more examples of one."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from tapnet.cli.pictures import Reader, network_of, read_examples
from tapnet.wording import pluralize

_EXAMPLES = """examples:
  tapnet add birds.task blackbird/*.jpg              the folder names the class
  tapnet add birds.task more/ --class robin          whatever the folder is called
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("task", type=Path, help="a task file; it is replaced")
    parser.add_argument("pictures", type=Path, nargs="+", help="pictures, or folders of them")
    parser.add_argument("--class", dest="name", help="the class of all of them (default: the name of their folder)")
    parser.add_argument("--network", help="the checkpoint of the task, where it lies elsewhere now")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, mps or auto")


def run(args: argparse.Namespace) -> None:
    from tapnet.data.source import normalize_name
    from tapnet.inference.folders import picture_files
    from tapnet.inference.task import with_examples
    from tapnet.inference.task_file import read_task, write_task

    if args.name is not None and not args.name.strip():
        raise ValueError(f"--class needs the name of a class, got {args.name!r}.")
    task = read_task(args.task)
    network = network_of(task, args.network, args.device)
    classes: dict[str, list[Path]] = {}
    for path in picture_files(args.pictures):
        classes.setdefault(args.name or normalize_name(path.absolute().parent.name), []).append(path)
    if not classes:
        raise ValueError(f"There is no picture in {', '.join(map(str, args.pictures))}.")
    reader = Reader(network.image_preprocessing, sum(map(len, classes.values())))
    larger = with_examples(task, list(classes), read_examples(classes, network, reader), network)
    write_task(larger, args.task)
    new = [name for name in larger.classes if name not in task.classes]
    added = len(larger.examples) - len(task.examples)
    passed = sum(map(len, classes.values())) - added - reader.broken
    console = Console(highlight=False, soft_wrap=True)
    named = f"; new {'class' if len(new) == 1 else 'classes'}: {', '.join(new)}" if new else ""
    console.print(f"{pluralize(added, 'picture')} added to {args.task}{named}")
    if passed:
        console.print(
            f"Passed over, since the task has {'it' if passed == 1 else 'them'}: {pluralize(passed, 'picture')}."
        )
    reader.finish()

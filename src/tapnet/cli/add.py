"""`tapnet add TASK IMAGES`: another class, or more examples of one."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tapnet.cli.options import add_labels, add_network, input_path
from tapnet.cli.progress import OUT, ImageProgress
from tapnet.errors import UserError
from tapnet.inference.task_path import check_task_path
from tapnet.text import pluralize

if TYPE_CHECKING:
    from tapnet.inference.folders import LabeledFolder

_EXAMPLES = """examples:
  tapnet add birds.task blackbird/*.jpg              the folder names the class
  tapnet add birds.task more/ --class robin          whatever the folder is called
  tapnet add birds.task --labels birds.csv           predictions, corrected by hand
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("task", type=input_path, help="a task file; it is replaced")
    parser.add_argument("images", type=input_path, nargs="*", help="images, or folders of them")
    add_labels(parser)
    parser.add_argument("--class", dest="name", help="the class of all of them (default: the name of their folder)")
    add_network(parser)


def run(args: argparse.Namespace) -> None:
    check_task_path(args.task)
    from tapnet.inference import add, read_task
    from tapnet.inference.task_file import file_version, replace_task

    if args.name is not None and not args.name.strip():
        raise UserError(f"--class needs the name of a class, got {args.name!r}.")
    version, task = file_version(args.task), read_task(args.task)
    images, progress = _images(args), ImageProgress()
    total = len(images)
    with progress.bar(total):
        larger = add(task, images.classes, args.network, args.device, progress.unreadable, progress.advance)
    replace_task(larger, args.task, version)
    new = [name for name in larger.classes if name not in task.classes]
    added = len(larger.examples) - len(task.examples)
    known = total - added - progress.broken
    named = f"; new {'class' if len(new) == 1 else 'classes'}: {', '.join(new)}" if new else ""
    OUT.print(f"{pluralize(added, 'image')} added to {args.task}{named}")
    if known:
        OUT.print(f"Left out, since the task has {'it' if known == 1 else 'them'}: {pluralize(known, 'image')}.")
    progress.finish(images)


def _images(args: argparse.Namespace) -> LabeledFolder:
    """Return the images by class, from a file of labels, --class or the names of their folders."""
    from tapnet.data.source import normalize_name
    from tapnet.inference import LabeledFolder, Skipped, find_images, read_labels

    if args.labels and not args.images and args.name is None:
        return read_labels(args.labels)
    if args.labels or not args.images:
        got = "both" if args.labels else "neither"
        raise UserError(f"Expected images, perhaps with --class, or --labels FILE, got {got}.")
    classes: dict[str, list[Path]] = {}
    skipped = Skipped()
    for path in find_images(args.images, skipped):
        classes.setdefault(args.name or normalize_name(path.absolute().parent.name), []).append(path)
    if not classes:
        raise UserError(f"There is no image in {', '.join(map(str, args.images))}. {' '.join(skipped.lines())}")
    return LabeledFolder(classes, skipped)

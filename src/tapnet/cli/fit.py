"""`tapnet fit FOLDER --out FILE`: learn the classes in a folder and write them as a task file."""

from __future__ import annotations

import argparse
from itertools import chain
from typing import TYPE_CHECKING

from tapnet.cli.options import add_labels, check_not_read, command, input_path, labeled_images, output_file, percent
from tapnet.cli.progress import ERRORS, OUT, ImageProgress
from tapnet.errors import UserError
from tapnet.text import pluralize

if TYPE_CHECKING:
    from tapnet.inference.leave_one_out import LeaveOneOut

SELECTIONS = ("optimal", "closest", "farthest")  # of `functional`, whose import would delay the help
BASES = ("householder", "references")  # of `methods`
_EXAMPLES = """examples:
  tapnet fit my_classes/ --out birds.task       my_classes/robin/*.jpg, my_classes/wren/*.jpg …
  tapnet fit --labels labels.csv --out birds.task     rows such as robin/1.jpg,robin
  tapnet fit sketches/ --network drawings --out sketches.task
  tapnet fit photos/ --network hf:facebook/dinov2-small --method logistic --out photos.task
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("folder", type=input_path, nargs="?", help="one folder of images per class")
    add_labels(parser)
    parser.add_argument("--out", type=output_file(), required=True, help="the task file to write, such as birds.task")
    parser.add_argument("--network", help="a bundled network, checkpoint, run folder or hf:MODEL (default: by content)")
    parser.add_argument(
        "--method",
        type=_method,
        default="auto",
        help="auto (default: the best for the network), centroid, logistic, protonet, or the network's own, such as "
        "tapnet for drawings",
    )
    parser.add_argument("--head", dest="method", type=_method, help=argparse.SUPPRESS)  # its name in earlier versions
    parser.add_argument(
        "--selection", choices=SELECTIONS, help="how classes take references, of TapNet (default: optimal)"
    )
    parser.add_argument(
        "--projection-dim", type=int, help="of TapNet's projection (default: the network's own, else all)"
    )
    parser.add_argument(
        "--basis",
        choices=BASES,
        help="which directions of TapNet's projection --projection-dim keeps: with references, one less than there are "
        "classes are enough (default: the network's own, else householder)",
    )
    parser.add_argument(
        "--reference-shots",
        type=float,
        metavar="N",
        help="each reference of TapNet counts for N images of its class (default: references alone, as in the paper)",
    )
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, mps or auto")


def _method(text: str) -> str:
    """Parse --method: "auto", or the name of a method."""
    if text != "auto":
        from tapnet.methods import METHODS, PARAMETER_FREE

        if text not in METHODS:
            raise argparse.ArgumentTypeError(
                f"expected auto, {', '.join(PARAMETER_FREE)} or the network's own method, such as tapnet, got {text!r}"
            )
    return text


def run(args: argparse.Namespace) -> None:
    folder = labeled_images(args.folder, args.labels)
    check_not_read(args.out, [args.labels, *chain.from_iterable(folder.classes.values())])
    if len(folder.classes) < 2:
        (only,) = folder.classes
        words = [f"{args.folder or args.labels} holds one class with images, {only!r}: a classifier needs at least 2."]
        if args.folder and any(path.is_dir() for path in (args.folder / only).glob("*")):
            words.append(f"If its folders are the classes, give {args.folder / only}.")
        raise UserError(" ".join([*words, *folder.skipped.lines()]))

    from tapnet.inference import compare_methods, fit, network_warning, propose_method, propose_network, write_task

    choice = None if args.network else propose_network(folder.classes)
    names = "selection", "projection_dim", "basis", "reference_shots"
    options = {name: value for name in names if (value := getattr(args, name)) is not None}
    progress = ImageProgress()
    with progress.bar(len(folder)):
        task = fit(
            folder.classes,
            args.network or (choice.name if choice else None),
            args.method,
            options,
            args.device,
            progress.unreadable,
            progress.advance,
        )
    write_task(task, args.out)

    shots = task.shots()
    counts = pluralize(shots[0], "image") if len(set(shots)) == 1 else f"{min(shots)} to {max(shots)} images"
    OUT.print(
        f"{len(task.classes)} classes, {counts} each, network {task.network}, method {task.method_label}: {args.out}"
    )
    if args.network and (warning := network_warning(folder.classes, args.network, args.device)):
        ERRORS.print(warning)
    if choice:
        OUT.print(f"Network {choice.name} ({choice.reason}); choose another with --network.")
    if args.method == "auto" and not options:
        reason = propose_method(task, args.network, args.device).reason
        OUT.print(f"Method {task.method} ({reason}); choose another with --method.")
    with progress.bar(1, "rounds of leave-one-out"):
        found = compare_methods(task, args.network, args.device, progress.show)
    _show(found, args)
    OUT.print(f"Try: tapnet predict {args.out} IMAGES")
    progress.finish(folder)


def _show(found: dict[str, LeaveOneOut], args: argparse.Namespace) -> None:
    """Print the accuracy of every method, that of the task first, and how to take another."""
    if not found:
        OUT.print("No leave-one-out accuracy: it needs at least two different images of every class.")
        return
    own, *others = found
    OUT.print(f"Leave-one-out accuracy on {found[own].total} images (95% interval):")
    for name, each in found.items():
        low, high = map(percent, each.interval)
        mark = " (this task)" if name == own else ""
        OUT.print(f"  {percent(each.accuracy):>7} ({low} to {high})  {name}{mark}")
    if others:
        best = max(others, key=lambda name: found[name].accuracy)
        source = ["--labels", args.labels] if args.labels else [args.folder]
        network = ["--network", args.network] if args.network else []
        out = args.out.with_stem(f"{args.out.stem}-{best}")  # beside the task that was just written
        OUT.print(f"Another method: {command('fit', *source, *network, '--method', best, '--out', out)}")

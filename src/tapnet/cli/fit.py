"""`tapnet fit`, `add`, `remove` and `export`: task files from labeled images, changed, and as ONNX files."""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from tapnet.cli.options import add_labels, add_network, check_not_read, command, input_path, labeled_images, output_file
from tapnet.cli.output import ERRORS, OUT, ImageProgress, percent, progress
from tapnet.errors import UserError
from tapnet.inference.task_path import check_task_path
from tapnet.text import pluralize

if TYPE_CHECKING:
    from tapnet.inference.folders import LabeledFolder
    from tapnet.inference.leave_one_out import LeaveOneOut

SELECTIONS = ("optimal", "closest", "farthest")  # of `functional`, whose import would delay the help
BASES = ("householder", "references")  # of `methods`
_FIT_EXAMPLES = """examples:
  tapnet fit my_classes/ --out birds.task       my_classes/robin/*.jpg, my_classes/wren/*.jpg …
  tapnet fit --labels labels.csv --out birds.task     rows such as robin/1.jpg,robin
  tapnet fit sketches/ --network drawings --out sketches.task
  tapnet fit photos/ --network hf:facebook/dinov2-small --method logistic --out photos.task
"""
_ADD_EXAMPLES = """examples:
  tapnet add birds.task blackbird/*.jpg              the folder names the class
  tapnet add birds.task more/ --class robin          whatever the folder is called
  tapnet add birds.task --labels birds.csv           predictions, corrected by hand
"""
_REMOVE_EXAMPLES = """examples:
  tapnet remove birds.task wren                 a class
  tapnet remove birds.task wren/blurred.jpg     one example, recognized by its content
"""
_EXPORT_EXAMPLES = """examples:
  tapnet export birds.task --onnx birds.onnx
  tapnet predict birds.onnx new_photos/
"""


def add_fit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _FIT_EXAMPLES
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


def run_fit(args: argparse.Namespace) -> None:
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
    shown = ImageProgress()
    with shown.bar(len(folder)):
        task = fit(
            folder.classes,
            args.network or (choice.name if choice else None),
            args.method,
            options,
            args.device,
            shown.unreadable,
            shown.advance,
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
    with progress("rounds of leave-one-out") as advance:
        accuracies = compare_methods(task, args.network, args.device, advance)
    _print_methods(accuracies, args)
    OUT.print(f"Try: tapnet predict {args.out} IMAGES")
    shown.finish(folder)


def _print_methods(accuracies: dict[str, LeaveOneOut], args: argparse.Namespace) -> None:
    """Print the accuracy of every method, that of the task first, and how to take another."""
    if not accuracies:
        OUT.print("No leave-one-out accuracy: it needs at least two different images of every class.")
        return
    own, *others = accuracies
    OUT.print(f"Leave-one-out accuracy on {accuracies[own].total} images (95% interval):")
    for name, result in accuracies.items():
        low, high = map(percent, result.interval)
        mark = " (this task)" if name == own else ""
        OUT.print(f"  {percent(result.accuracy):>7} ({low} to {high})  {name}{mark}")
    if others:
        best = max(others, key=lambda name: accuracies[name].accuracy)
        source = ["--labels", args.labels] if args.labels else [args.folder]
        network = ["--network", args.network] if args.network else []
        out = args.out.with_stem(f"{args.out.stem}-{best}")  # beside the task that was just written
        OUT.print(f"Another method: {command('fit', *source, *network, '--method', best, '--out', out)}")


def add_add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _ADD_EXAMPLES
    parser.add_argument("task", type=input_path, help="a task file; it is replaced")
    parser.add_argument("images", type=input_path, nargs="*", help="images, or folders of them")
    add_labels(parser)
    parser.add_argument("--class", dest="name", help="the class of all of them (default: the name of their folder)")
    add_network(parser)


def run_add(args: argparse.Namespace) -> None:
    check_task_path(args.task)
    from tapnet.inference import add, read_task
    from tapnet.inference.task_file import file_version, replace_task

    if args.name is not None and not args.name.strip():
        raise UserError(f"--class needs the name of a class, got {args.name!r}.")
    version, task = file_version(args.task), read_task(args.task)
    images, shown = _images_to_add(args), ImageProgress()
    with shown.bar(len(images)):
        larger = add(task, images.classes, args.network, args.device, shown.unreadable, shown.advance)
    replace_task(larger, args.task, version)
    new = [name for name in larger.classes if name not in task.classes]
    added = len(larger.examples) - len(task.examples)
    known = len(images) - added - shown.broken
    named = f"; new {'class' if len(new) == 1 else 'classes'}: {', '.join(new)}" if new else ""
    OUT.print(f"{pluralize(added, 'image')} added to {args.task}{named}")
    if known:
        OUT.print(f"Left out, since the task has {'it' if known == 1 else 'them'}: {pluralize(known, 'image')}.")
    shown.finish(images)


def _images_to_add(args: argparse.Namespace) -> LabeledFolder:
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


def add_remove_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _REMOVE_EXAMPLES
    parser.add_argument("task", type=input_path, help="a task file; it is replaced")
    parser.add_argument("what", nargs="+", help="classes or images")
    add_network(parser, device=False)


def run_remove(args: argparse.Namespace) -> None:
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
    OUT.print(f"{pluralize(removed, 'image')} removed, {len(smaller.classes)} classes left: {args.task}")
    if gone := [name for name in task.classes if name not in smaller.classes]:
        OUT.print(f"The task no longer has the {'class' if len(gone) == 1 else 'classes'} {', '.join(gone)}.")


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXPORT_EXAMPLES
    parser.add_argument("task", type=input_path, help="a task file")
    parser.add_argument(
        "--onnx", type=output_file(".onnx"), required=True, help="the file to write, such as birds.onnx"
    )
    add_network(parser, device=False)


def run_export(args: argparse.Namespace) -> None:
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

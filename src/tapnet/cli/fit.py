"""`tapnet fit`, `add`, `remove` and `export`: task files from labeled images, changed, and as ONNX files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from tapnet import inference
from tapnet.cli import options
from tapnet.cli.output import ERRORS, OUT, ImageProgress, percent, progress
from tapnet.errors import UserError
from tapnet.paths import locked
from tapnet.text import did_you_mean, pluralize

if TYPE_CHECKING:
    from tapnet.inference import Confusion, LabeledFolder

_OPTIONS = ("selection", "projection_dim", "basis", "reference_shots")
_LOCK_SECONDS = 60  # to wait for another process that changes the same task
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
    parser.epilog, add = _FIT_EXAMPLES, parser.add_argument
    add("folder", type=options.input_path, nargs="?", help="one folder of images per class")
    add("--out", type=options.output_file(".task"), required=True, help="the file to write, such as birds.task")
    add("--force", action="store_true", help="replace a task file")
    words = "auto (default: the best for the network), centroid, logistic, protonet, or the network's, such as tapnet"
    add("--method", default="auto", help=words)
    add("--selection", metavar="NAME", help="TapNet's references are optimal (default), closest or farthest")
    add("--projection-dim", type=int, help="of TapNet's projection (default: the network's own, else all)")
    add("--basis", metavar="NAME", help="directions of TapNet's projection to keep: householder or references")
    words = "each reference of TapNet counts for N images of its class (default: references alone, as in the paper)"
    add("--reference-shots", type=float, metavar="N", help=words)
    options.add_shared(parser, "--network", help="a bundled network, checkpoint, run or hf:MODEL (default: by content)")
    options.add_shared(parser, "--labels")
    options.add_shared(parser, "--device", default="cpu")


def run_fit(args: argparse.Namespace) -> None:
    folder = options.labeled_images(args.folder, args.labels)
    if args.out.exists() and not args.force:
        raise UserError(f"{args.out} is there: choose another name, or replace it with --force.")
    if len(folder.classes) < 2:
        (only,) = folder.classes
        words = [f"{args.folder or args.labels} holds one class with images, {only!r}: a classifier needs at least 2."]
        if args.folder and any(path.is_dir() for path in (args.folder / only).glob("*")):
            words.append(f"If its folders are the classes, give {args.folder / only}.")
        raise UserError(" ".join([*words, *folder.skipped.lines()]))

    choice = None if args.network else inference.propose_network(folder.classes)
    network = choice.name if choice else args.network
    chosen = {name: value for name in _OPTIONS if (value := getattr(args, name)) is not None}
    shown = ImageProgress()
    with shown.bar(len(folder)):
        task = inference.fit(folder.classes, network, args.method, chosen, args.device, shown.unreadable, shown.advance)
    inference.write_task(task, args.out)

    shots = task.shots()
    counts = pluralize(shots[0], "image") if len(set(shots)) == 1 else f"{min(shots)} to {max(shots)} images"
    learned = f"{len(task.classes)} classes, {counts} each, network {task.network}, method {task.method_label}"
    OUT.print(f"{learned}: {args.out}")
    if args.network and (warning := inference.network_warning(folder.classes, args.network, args.device)):
        ERRORS.print(warning)
    if choice:
        OUT.print(f"Network {choice.name} ({choice.reason}); choose another with --network.")
    if args.method == "auto" and not chosen:
        reason = inference.propose_method(task, args.network, args.device).reason
        OUT.print(f"Method {task.method} ({reason}); choose another with --method.")
    with progress("rounds of leave-one-out") as advance:
        accuracies = inference.compare_methods(task, args.network, args.device, advance)
    _print_methods(accuracies, args)
    OUT.print(f"Try: tapnet predict {args.out} IMAGES")
    shown.finish(folder)


def _print_methods(accuracies: dict[str, Confusion], args: argparse.Namespace) -> None:
    """Print the accuracy of every method, that of the task first, and the command that fits a better one."""
    if not accuracies:
        OUT.print("No leave-one-out accuracy: it needs at least two different images of every class.")
        return
    own = next(iter(accuracies))
    OUT.print(f"Leave-one-out accuracy on {accuracies[own].total} images (95% interval):")
    for name, result in accuracies.items():
        low, high = map(percent, result.interval)
        mark = " (this task)" if name == own else ""
        OUT.print(f"  {percent(result.accuracy):>7} ({low} to {high})  {name}{mark}")
    best = max(accuracies, key=lambda name: accuracies[name].accuracy)  # the task's own, if others are only as good
    if best != own:
        source = ["--labels", args.labels] if args.labels else [args.folder]
        network = ["--network", args.network] if args.network else []
        out = args.out.with_stem(f"{args.out.stem}-{best}")  # beside the task that was just written
        OUT.print(f"Better here: {options.command('fit', *source, *network, '--method', best, '--out', out)}")


def add_add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, add = _ADD_EXAMPLES, parser.add_argument
    add("task", type=options.input_path, help="a task file; it is replaced")
    add("images", type=options.input_path, nargs="*", help="images, or folders of them")
    add("--class", dest="name", help="the class of all of them (default: the name of their folder)")
    options.add_shared(parser, "--labels", "--network")
    options.add_shared(parser, "--device", default="cpu")


def run_add(args: argparse.Namespace) -> None:
    inference.check_task_path(args.task)
    if args.name is not None and not args.name.strip():
        raise UserError(f"--class needs the name of a class, got {args.name!r}.")
    images, shown = _images_to_add(args), ImageProgress()
    with locked(args.task, _LOCK_SECONDS):
        task = inference.read_task(args.task)
        with shown.bar(len(images)):
            larger = inference.add(task, images.classes, args.network, args.device, shown.unreadable, shown.advance)
        inference.write_task(larger, args.task)
    new = [name for name in larger.classes if name not in task.classes]
    added = len(larger.examples) - len(task.examples)
    named = f"; new {'class' if len(new) == 1 else 'classes'}: {', '.join(new)}" if new else ""
    OUT.print(f"{pluralize(added, 'image')} added to {args.task}{named}")
    if known := len(images) - added - shown.broken:
        OUT.print(f"Left out, since the task has {'it' if known == 1 else 'them'}: {pluralize(known, 'image')}.")
    shown.finish(images)


def _images_to_add(args: argparse.Namespace) -> LabeledFolder:
    """Return the images by class, from a file of labels, --class or the names of their folders."""
    from tapnet.text import normalize_name

    if args.labels and not args.images and args.name is None:
        return inference.read_labels(args.labels)
    if args.labels or not args.images:
        got = "both" if args.labels else "neither"
        raise UserError(f"Expected images, perhaps with --class, or --labels FILE, got {got}.")
    classes: dict[str, list[Path]] = {}
    skipped = inference.Skipped()
    for path in inference.find_images(args.images, skipped):
        classes.setdefault(args.name or normalize_name(path.absolute().parent.name), []).append(path)
    if not classes:
        raise UserError(f"There is no image in {', '.join(map(str, args.images))}. {' '.join(skipped.lines())}")
    return inference.LabeledFolder(classes, skipped)


def add_remove_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, add = _REMOVE_EXAMPLES, parser.add_argument
    add("task", type=options.input_path, help="a task file; it is replaced")
    add("what", nargs="+", help="classes or images")
    options.add_shared(parser, "--network")


def run_remove(args: argparse.Namespace) -> None:
    inference.check_task_path(args.task)
    with locked(args.task, _LOCK_SECONDS):
        task = inference.read_task(args.task)
        classes = [name for name in args.what if name in task.classes]
        images = [name for name in args.what if name not in task.classes]
        if unknown := next((name for name in images if not Path(name).is_file()), None):
            names = ", ".join(task.classes)
            hint = did_you_mean(unknown, task.classes)
            raise UserError(f"{unknown!r} is neither a class of the task ({names}) nor an image{hint}.")
        smaller = inference.remove(task, classes, images, args.network)
        inference.write_task(smaller, args.task)
    removed = len(task.examples) - len(smaller.examples)
    OUT.print(f"{pluralize(removed, 'image')} removed, {len(smaller.classes)} classes left: {args.task}")
    if gone := [name for name in task.classes if name not in smaller.classes]:
        OUT.print(f"The task no longer has the {'class' if len(gone) == 1 else 'classes'} {', '.join(gone)}.")


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog, add = _EXPORT_EXAMPLES, parser.add_argument
    add("task", type=options.input_path, help="a task file")
    add("--onnx", type=options.output_file(".onnx"), required=True, help="the file to write, such as birds.onnx")
    options.add_shared(parser, "--network")


def run_export(args: argparse.Namespace) -> None:
    inference.check_task_path(args.task)
    inference.export(inference.read_task(args.task), args.onnx, args.network)
    written = inference.open_predictor(args.onnx)
    shape = "×".join(map(str, ("n", *written.preprocessing.shape)))
    output = f"output `probabilities` n×{len(written.classes)}; class names and preprocessing in its metadata"
    OUT.print(f"{args.onnx}: input `images` uint8 {shape}, {output}.\nTry: tapnet predict {args.onnx} IMAGES")

"""`tapnet fit FOLDER --out FILE`: learn the classes in a folder and write them as a task file."""

from __future__ import annotations

import argparse
from itertools import chain
from pathlib import Path

from rich.console import Console

from tapnet.cli.options import output_file, percent
from tapnet.cli.pictures import Reader, read_examples
from tapnet.wording import pluralize

_EXAMPLES = """examples:
  tapnet fit my_classes/ --out birds.task       my_classes/robin/*.jpg, my_classes/wren/*.jpg …
  tapnet fit sketches/ --network drawings --out sketches.task
  tapnet fit photos/ --network hf:facebook/dinov2-small --method centroid --out photos.task
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("folder", type=Path, help="one folder of pictures a class")
    parser.add_argument("--out", type=output_file(), required=True, help="the task file to write, such as birds.task")
    parser.add_argument("--network", help="a bundled network, checkpoint, run folder or hf:MODEL (default: by content)")
    parser.add_argument("--method", help="the network's own (default), centroid, logistic or protonet")
    parser.add_argument("--head", dest="method", help=argparse.SUPPRESS)  # its name in earlier versions
    parser.add_argument("--selection", help="how classes take references, of TapNet (default: optimal)")
    parser.add_argument(
        "--projection-dim", type=int, help="of TapNet's projection (default: the network's own, else all)"
    )
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, mps or auto")


def run(args: argparse.Namespace) -> None:
    from tapnet.inference.folders import class_folders
    from tapnet.inference.networks import load_network, proposed_network
    from tapnet.inference.task import check_names_differ, fit_task, leave_one_out
    from tapnet.inference.task_file import write_task

    classes = class_folders(args.folder)
    check_names_differ(list(classes))
    if len(classes) < 2:
        raise ValueError(f"{args.folder} holds one class, {next(iter(classes))!r}: a classifier needs at least 2.")
    network = load_network(args.network or proposed_network([*chain(*classes.values())]), args.device)
    reader = Reader(network.image_preprocessing, sum(map(len, classes.values())))
    examples = read_examples(classes, network, reader)
    options = {"selection": args.selection, "projection_dim": args.projection_dim}
    task = fit_task(list(classes), examples, network, args.method, options)
    write_task(task, args.out)

    console = Console(highlight=False, soft_wrap=True)
    shots = task.shots()
    counts = pluralize(shots[0], "picture") if len(set(shots)) == 1 else f"{min(shots)} to {max(shots)} pictures"
    console.print(f"{len(classes)} classes, {counts} each, network {network.name}, method {task.method}: {args.out}")
    found = leave_one_out(task, network)
    if found is not None:
        low, high = map(percent, found.interval)
        console.print(
            f"Leave-one-out accuracy: {percent(found.accuracy)} of {found.total} images (95% interval {low} to {high}), "
            "leaving one image of every class out at a time."
        )
    else:
        console.print("No leave-one-out accuracy: that needs two pictures or more of every class.")
    console.print(f"Try: tapnet predict {args.out} PICTURES")
    reader.finish()

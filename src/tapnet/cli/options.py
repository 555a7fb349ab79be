"""Options that several commands share, the parsers of their values, and what may be written over."""

from __future__ import annotations

import argparse
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tapnet.errors import UserError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from tapnet.data.episodes import EpisodeSpec
    from tapnet.inference import LabeledFolder

FIGURES = (".png", ".pdf", ".svg", ".jpg")
TABLES = (".csv", ".tex")
_MARKS = dict.fromkeys(FIGURES, rb"[Mm]atplotlib|tapnet") | {".task": rb"tapnet-task", ".onnx": rb"tapnet"}


def numbers(text: str) -> list[int]:
    """Parse one number, or several separated by commas."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected numbers separated by commas, got {text!r}") from None


def share(text: str) -> float:
    """Parse a share: 5%, 0.05 or, from 1 on, 5."""
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = -1.0
    value /= 100 if text.endswith("%") or value >= 1 else 1
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"expected a share such as 5% or 0.05, got {text!r}")
    return value


def _reject(text: str) -> float | str:
    """Parse --reject: a probability, which may be a percentage, or "auto"."""
    if text == "auto":
        return text
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        words = f"expected a probability such as 0.6 or 60%, or auto, got {text!r}"
        raise argparse.ArgumentTypeError(words) from None
    return value / 100 if text.endswith("%") or value > 1 else value


def input_path(text: str) -> Path:
    """Parse the path of a file or folder to read."""
    if "://" in text:
        raise argparse.ArgumentTypeError(f"{text} is an address: download it first, then pass the path of the file.")
    if text == "-":
        raise argparse.ArgumentTypeError("standard input is not read: save the image as a file first.")
    return Path(text)


def output_folder(text: str) -> Path:
    """Parse the path of a folder to write into, which need not exist."""
    path = Path(text)
    existing = next(part for part in (path.absolute(), *path.absolute().parents) if part.exists())
    if not existing.is_dir():
        raise argparse.ArgumentTypeError(f"{existing} is a file, expected a folder")
    if not os.access(existing, os.W_OK):
        raise argparse.ArgumentTypeError(f"{existing} cannot be written to: choose another folder")
    return path


def output_file(*endings: str) -> Callable[[str], Path]:
    """Return a parser of paths of files to write: with one of these endings, and no file of another kind.

    An existing file must be empty or have the mark of its kind; kinds of text have none, and must be text.
    """

    def parse(text: str) -> Path:
        path = output_folder(str(Path(text).parent)) / Path(text).name
        ending = path.suffix.lower()
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{path} is a folder: give the name of a file in it.")
        if ending not in endings:
            raise argparse.ArgumentTypeError(f"expected a name that ends in {' or '.join(endings)}, got {path}")
        content = path.read_bytes() if path.is_file() else b""
        if content and not (re.search(_MARKS[ending], content) if ending in _MARKS else b"\0" not in content):
            raise argparse.ArgumentTypeError(f"{path} is there and was not written by tapnet: choose another name.")
        return path

    return parse


def check_not_read(out: Path | None, inputs: Iterable[str | Path | None]) -> None:
    """Raise UserError if the file to write is one of the files that the command reads."""
    if out is not None and out.exists() and any(Path(path).exists() and out.samefile(path) for path in inputs if path):
        raise UserError(f"{out} is one of the files that this command reads: give --out another name.")


TASK = ("--dataset", "--root", "--split", "--rotations", "--way", "--shot", "--query", "--allow-overlap", "--seed")
PROCESSES = ("--devices", "--num-nodes", "--strategy")
ENGINE = ("--engine", "--address", "--workers")
_SHARED: dict[str, dict[str, Any]] = {
    "--device": {"default": "auto", "help": "auto (a GPU if there is one), cpu, cuda or mps (default: %(default)s)"},
    "--precision": {"default": "auto", "help": "auto, float32 or bf16 (default: %(default)s)"},
    "--set": {"nargs": "+", "action": "extend", "default": [], "metavar": "KEY=VALUE", "help": "change the recipe"},
    "--json": {"action": "store_true", "help": "print one JSON object"},
    "--devices": {"type": int, "help": "processes per machine (default: 1, or as set by torchrun)"},
    "--num-nodes": {"type": int, "help": "machines (default: 1, or as set by torchrun)"},
    "--strategy": {"default": "auto", "help": "auto, or ddp: gradients averaged over processes"},
    "--engine": {"choices": ["ray"], "help": "run on a Ray cluster (tapnet[ray])"},
    "--address": {"help": "the Ray cluster: auto or host:port (default: RAY_ADDRESS, else local cores)"},
    "--workers": {"type": int, "help": "Ray workers (default: one per GPU, or per core if there is none)"},
    "--dataset": {"help": "default: the dataset of the checkpoint's recipe"},
    "--root": {"help": "folder of the prepared datasets"},
    "--split": {"default": "test", "help": "the split to take classes from (default: test)"},
    "--rotations": {"type": int, "help": "4: images rotated by 90, 180, 270 degrees are classes; 1: not"},
    "--way": {"type": int, "default": 5, "help": "classes per episode (default: 5)"},
    "--shot": {"type": int, "default": 5, "help": "labeled images per class (default: 5)"},
    "--query": {"type": int, "default": 15, "help": "images to classify per class (default: 15)"},
    "--allow-overlap": {"action": "store_true", "help": "allow classes of the backbone's pretraining"},
    "--seed": {"type": int, "default": 0, "help": "the seed of the episodes (default: 0)"},
    "--episodes": {"type": int, "default": 2000, "help": "how many episodes (default: 2000)"},
    "--no-class-interval": {"action": "store_true", "help": "leave out the interval over classes: faster"},
    "--labels": {"type": input_path, "metavar": "FILE", "help": "a .csv or .jsonl file of paths and classes"},
    "--network": {"help": "path to the task's checkpoint, if it moved"},
    "--reject": {"type": _reject, "default": 0.0},
    "--lose": {"type": share, "metavar": "SHARE", "help": "known images that --reject auto may lose (default: 5%%)"},
}


def add_shared(parser: argparse.ArgumentParser, *flags: str, **changes: Any) -> None:
    """Add options that other commands have, too, with changes of their defaults, types or help."""
    for flag in flags:
        parser.add_argument(flag, **_SHARED[flag] | changes)


def listing(heading: str, entries: Mapping[str, str]) -> str:
    """Return names with what they are, one per line, below a heading."""
    width = max(map(len, entries)) + 2
    return f"{heading}:\n" + "".join(f"  {name:<{width}}{summary}\n" for name, summary in entries.items())


def command(*words: object) -> str:
    """Return a command line to copy, quoted for a shell."""
    return shlex.join(["tapnet", *map(str, words)])


def processes(args: argparse.Namespace, meta_batch: int | None = None) -> AbstractContextManager[Fabric]:
    """Return a context with the processes that the options `PROCESSES` ask for.

    Raise UserError before any is started if they cannot share the episodes of a step, `meta_batch`, evenly.
    """
    from tapnet.hardware import launched, resolve_device, resolve_precision

    device = resolve_device(args.device)
    precision = resolve_precision(args.precision, device)
    return launched(device, precision, args.devices, args.num_nodes, args.strategy, meta_batch)


def check_engine(args: argparse.Namespace) -> None:
    """Raise UserError if options of a cluster are used without one."""
    if args.engine is None and (args.address or args.workers is not None):
        raise UserError("--address and --workers belong to a cluster: add --engine ray, or leave them out.")
    if args.workers is not None and args.workers < 1:
        raise UserError(f"Expected --workers to be at least 1, got {args.workers}.")


def episode_spec(args: argparse.Namespace) -> EpisodeSpec:
    """Return the episodes by the options `TASK` and --episodes."""
    from tapnet.data.episodes import EpisodeSpec

    return EpisodeSpec(args.way, args.shot, args.query, args.episodes, args.seed)


def labeled_images(folder: Path | None, labels: Path | None) -> LabeledFolder:
    """Return the images of a folder of classes or of a file of labels; raise UserError unless there is exactly one."""
    from tapnet.inference import class_folders, read_labels

    if labels is not None and folder is None:
        return read_labels(labels)
    if folder is not None and labels is None:
        return class_folders(folder)
    got = "both" if folder else "neither"
    raise UserError(f"Expected a folder of classes or --labels FILE, got {got}.")


def check_lose(args: argparse.Namespace) -> None:
    """Raise UserError if --lose is given without --reject auto; set its default."""
    from tapnet.inference.predictor import LOSE

    if args.lose is not None and args.reject != "auto":
        raise UserError("--lose only applies to --reject auto: add that, or leave --lose out.")
    args.lose = LOSE if args.lose is None else args.lose

"""Options that several commands share, and how accuracies are printed."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from tapnet.data.episodes import EpisodeSpec
    from tapnet.evaluation.evaluator import Evaluation


def add_device(parser: argparse.ArgumentParser, precision: str) -> None:
    parser.add_argument("--device", default="auto", help="auto (a GPU when there is one), cpu, cuda or mps")
    parser.add_argument("--precision", default=precision, help=f"auto, float32 or bf16 (default: {precision})")


def episode_spec(args: argparse.Namespace) -> EpisodeSpec:
    """Return the episodes that the options of `add_episodes` ask for."""
    from tapnet.data.episodes import EpisodeSpec

    return EpisodeSpec(args.way, args.shot, args.query, args.episodes, args.seed)


def add_processes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--devices", type=int, help="processes a machine, one a GPU (default: 1, or as torchrun says)")
    parser.add_argument("--num-nodes", type=int, help="machines (default: 1, or as torchrun says)")
    parser.add_argument("--strategy", default="auto", help="auto, or ddp: gradients averaged over processes")


def processes(args: argparse.Namespace) -> AbstractContextManager[Fabric]:
    """The processes that the options ask for, started."""
    from tapnet.distributed import Layout, launched
    from tapnet.hardware import resolve_device, resolve_precision

    device = resolve_device(args.device)
    layout = Layout(args.devices, args.num_nodes, args.strategy)
    return launched(device, resolve_precision(args.precision, device), layout)


def add_episodes(parser: argparse.ArgumentParser, default: int | None = 2000, words: str = "2000") -> None:
    add_task(parser)
    parser.add_argument("--episodes", type=int, default=default, help=f"how many episodes (default: {words})")


def add_task(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dataset", help="default: the dataset of the checkpoint's recipe")
    parser.add_argument("--root", help="folder of the prepared datasets")
    parser.add_argument("--split", default="test", help="which classes (default: test)")
    parser.add_argument(
        "--rotations", type=int, help="4: images turned by 90, 180, 270 degrees are classes too; 1: not"
    )
    parser.add_argument("--way", type=int, default=5, help="classes an episode (default: 5)")
    parser.add_argument("--shot", type=int, default=5, help="labelled images a class (default: 5)")
    parser.add_argument("--query", type=int, default=15, help="images to classify a class (default: 15)")
    parser.add_argument("--allow-overlap", action="store_true", help="also on classes that the backbone was trained on")
    parser.add_argument("--seed", type=int, default=0, help="which episodes (default: 0)")


def output_file(*endings: str) -> Callable[[str], Path]:
    """The type of an option that names a file to write, with one of these endings where there are some."""

    def checked(text: str) -> Path:
        path = output_folder(str(Path(text).parent)) / Path(text).name
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{path} is a folder: give the name of a file in it.")
        if endings and path.suffix.lower() not in endings:
            raise argparse.ArgumentTypeError(f"the name needs to end in {' or '.join(endings)}, got {path}")
        return path

    return checked


FIGURES = (".png", ".pdf", ".svg", ".jpg")


def output_folder(text: str) -> Path:
    """The type of an option that names a folder to fill."""
    path = Path(text)
    there = next(part for part in (path.absolute(), *path.absolute().parents) if part.exists())
    if not there.is_dir():
        raise argparse.ArgumentTypeError(f"{there} is a file, expected a folder")
    if not os.access(there, os.W_OK):
        raise argparse.ArgumentTypeError(f"{there} cannot be written to: give another folder")
    return path


def percent(value: float) -> str:
    return f"{100 * value:.2f}%"


def describe(result: Evaluation) -> str:
    return f"{result.way}-way {result.shot}-shot"

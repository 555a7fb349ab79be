"""What the commands on one's own pictures share: reading with a progress bar, and naming what could not be read."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from tapnet.wording import pluralize

if TYPE_CHECKING:
    from tapnet.data.preprocessing import Preprocessing
    from tapnet.inference.images import Example
    from tapnet.inference.networks import EmbeddingModel
    from tapnet.inference.prediction import Predictor
    from tapnet.inference.task import Examples, Task

ERRORS = Console(stderr=True, highlight=False, soft_wrap=True)


class Reader:
    """Reads picture files, shows progress on stderr, and remembers which were broken."""

    def __init__(self, preprocessing: Preprocessing, total: int | None = None) -> None:
        self.preprocessing, self.total = preprocessing, total
        self.broken = 0

    def read(self, files: Iterable[Path]) -> Iterator[tuple[Path, Example]]:
        """The readable ones, in order; a broken one is named as it is met."""
        from tapnet.data.source import Unreadable
        from tapnet.inference.images import read_pictures

        with _progress() as progress:
            bar = progress.add_task("", total=self.total)
            for path, example in read_pictures(files, self.preprocessing):
                progress.advance(bar)
                if isinstance(example, Unreadable):
                    self.broken += 1
                    progress.console.print(f"{path}: {example.reason}", markup=False)
                else:
                    yield Path(str(path)), example

    def finish(self) -> None:
        """Exit code 1 when something could not be read, with the count."""
        if self.broken:
            ERRORS.print(f"{pluralize(self.broken, 'picture')} could not be read.")
            raise SystemExit(1)


def _progress() -> Progress:
    columns = BarColumn(), MofNCompleteColumn(), TextColumn("pictures, time left"), TimeRemainingColumn()
    return Progress(*columns, console=ERRORS, transient=True, disable=not sys.stderr.isatty())


def read_examples(classes: dict[str, list[Path]], network: EmbeddingModel, reader: Reader) -> Examples:
    """The labelled examples in class folders; a class without a readable picture and a picture in two are refused."""
    import numpy as np

    from tapnet.inference.task import Examples

    owners = {path: label for label, files in enumerate(classes.values()) for path in files}
    read = [(owners[path], path, example) for path, example in reader.read(owners)]
    names = list(classes)
    _check_doubles([(names[label], path, example.sha256) for label, path, example in read])
    missing = sorted(set(range(len(classes))) - {label for label, _, _ in read})
    if missing:
        raise ValueError(f"No picture of class {names[missing[0]]!r} can be read: add one that can, or leave it out.")
    return Examples(
        network.embed(example.pixels for _, _, example in read),
        np.array([label for label, _, _ in read], dtype=np.int64),
        tuple(example.sha256 for _, _, example in read),
        tuple(example.thumbnail for _, _, example in read),
    )


def _check_doubles(pictures: list[tuple[str, Path, str]]) -> None:
    first: dict[str, tuple[str, Path]] = {}
    for name, path, digest in pictures:
        other, there = first.setdefault(digest, (name, path))
        if other != name:
            raise ValueError(f"{path} ({name}) and {there} ({other}) are the same picture: keep it in one class.")


def network_of(task: Task, args_network: str | None, device: str) -> EmbeddingModel:
    """The network that a task belongs to, by the name in its file or as given; another one is refused."""
    from tapnet.inference.networks import FEATURES, load_network

    if task.network == FEATURES:
        raise ValueError("The task was fitted to feature vectors, not to pictures: use it by TapNetClassifier.load.")
    try:
        network = load_network(args_network or task.network, device)
    except FileNotFoundError as error:
        if args_network:
            raise
        raise FileNotFoundError(
            f"The task was fitted with {task.network!r}, which is not here (sha-256 {task.network_sha256[:12]}…): give "
            "its checkpoint with --network."
        ) from error
    task.check_network(network)
    return network


def predictor_of(path: Path, network: str | None, device: str) -> Predictor:
    """What predicts by a task file or by an exported one."""
    if path.suffix.lower() == ".onnx":
        from tapnet.inference.onnx_predictor import OnnxPredictor

        return OnnxPredictor(path)
    from tapnet.inference.task_file import read_task, with_network
    from tapnet.inference.torch_predictor import TaskPredictor

    task = read_task(path)
    model = network_of(task, network, device)
    return TaskPredictor(with_network(task, model), model)

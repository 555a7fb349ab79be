"""From a file to answers: open a task file or an exported one, and predict images.

This file needs no PyTorch: an exported task is predicted without it, and a wrong path is told before it is imported.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from tapnet.data.preprocessing import Preprocessing
from tapnet.errors import NotFoundError, UserError
from tapnet.inference.images import (
    GROUP,
    Example,
    ImageInput,
    OnUnreadable,
    check_several,
    in_batches,
    read_images,
    readable,
)
from tapnet.paths import BEST

if TYPE_CHECKING:
    from tapnet.inference.networks import EmbeddingModel
    from tapnet.inference.rejection import Rejection
    from tapnet.inference.task import Task

UNKNOWN = "unknown"
AUTO, LOSE = "auto", 0.05  # reject by the task's own examples, losing this share of the known images
Reject = float | str  # a probability, or AUTO
Answers = tuple[NDArray[np.floating], NDArray[np.bool_]]  # probabilities (n, way), and which images are rejected


@dataclass(frozen=True)
class Prediction:
    """The classes of one image, the most probable first."""

    image: ImageInput  # as it was given
    ranked: tuple[tuple[str, float], ...]
    rejected: bool = False
    sha256: str = ""  # of the file or the pixels

    @property
    def best(self) -> str:
        """The most probable class, rejected or not."""
        return self.ranked[0][0]

    @property
    def label(self) -> str:
        """The most probable class, or "unknown" if it was rejected."""
        return UNKNOWN if self.rejected else self.best

    @property
    def probability(self) -> float:
        """The probability of the most probable class."""
        return self.ranked[0][1]


class Predictor(ABC):
    """A fitted task with its network, or an exported task; several threads may use one."""

    classes: tuple[str, ...]
    preprocessing: Preprocessing
    hashes: frozenset[str] = frozenset()  # sha-256 of the examples of the task; empty if they were not kept

    @abstractmethod
    def answers(self, pixels: Sequence[NDArray[np.uint8]], reject: Reject = 0.0, lose: float = LOSE) -> Answers:
        """Return the answers to prepared images (height, width, channels)."""

    def predict(
        self, images: Iterable[ImageInput], top: int = 1, reject: Reject = 0.0, lose: float = LOSE
    ) -> list[Prediction]:
        """Return the `top` classes of each image; below the probability `reject` its label is "unknown".

        With `reject="auto"` the examples of the task decide, so that about the share `lose` of the images of its own
        classes is rejected. Raise UserError if an image cannot be read.
        """
        batches = self.predict_batches(images, top, reject, lose=lose)
        return [prediction for batch in batches for prediction in batch]

    def predict_batches(
        self,
        images: Iterable[ImageInput],
        top: int = 1,
        reject: Reject = 0.0,
        on_unreadable: OnUnreadable | None = None,
        lose: float = LOSE,
    ) -> Iterator[list[Prediction]]:
        """Yield predictions batch by batch, holding about a hundred images at a time.

        An image that cannot be read is left out and given to `on_unreadable` with the reason; without that, raise
        UserError.
        """
        check_several(images)
        examples = readable(read_images(images, self.preprocessing), on_unreadable)
        return self.predict_examples(examples, top, reject, lose)

    def predict_examples(
        self, examples: Iterable[tuple[ImageInput, Example]], top: int = 1, reject: Reject = 0.0, lose: float = LOSE
    ) -> Iterator[list[Prediction]]:
        """Yield predictions of images that are read already, batch by batch."""
        self.check_options(top, reject, lose)
        for batch in in_batches(examples, GROUP):
            rows, rejected = self.answers([example.pixels for _, example in batch], reject, lose)
            ranked = rank_classes(rows, self.classes, top)
            yield [
                Prediction(image, classes, bool(unknown), example.sha256)
                for (image, example), classes, unknown in zip(batch, ranked, rejected, strict=True)
            ]

    def check_options(self, top: int = 1, reject: Reject = 0.0, lose: float = LOSE) -> None:
        """Raise UserError unless this predictor can return so many classes and reject in this way."""
        way = len(self.classes)
        if not 1 <= top <= way:
            raise UserError(f"Expected `top` from 1 to the number of classes, {way}, got {top}.", parameter="top")
        if reject == AUTO:
            self.check_rejection(lose)
        elif isinstance(reject, str) or not 0 <= reject <= 1:
            raise UserError(
                f'Expected `reject` to be "{AUTO}" or a probability from 0 to 1, got {reject}.', parameter="reject"
            )
        if reject and UNKNOWN in self.classes:
            raise UserError(
                f"The task has a class {UNKNOWN!r}, which is also the label of rejected images: fit that class under "
                "another name, or do not reject."
            )

    def check_rejection(self, lose: float) -> None:  # noqa: ARG002
        """Raise UserError unless the examples of the task are there and enough to reject by them."""
        raise UserError(
            "An exported task does not keep its examples, from which the threshold comes: predict with the task file, "
            "or reject below a probability such as 0.6.",
            parameter="reject",
        )


class TaskPredictor(Predictor):
    """A task opened with its network: embeds images, and scores them by the head that its examples give."""

    def __init__(self, task: Task, network: EmbeddingModel) -> None:
        from tapnet.inference.networks import exact_head

        task.check_network(network)
        self.task, self.network, self.classes = task, network, task.classes
        if network.preprocessing is not None:  # feature vectors have none
            self.preprocessing = network.preprocessing
        examples, self.hashes = task.examples, frozenset(task.examples.hashes)
        self.adapted = network.adapt(examples.features, examples.labels, task.method, task.options)
        self.head = exact_head(self.adapted)
        self._rejection = cache(self._fit_rejection)

    @classmethod
    def open(cls, task: Task, network: str | None = None, device: str = "cpu") -> Self:
        """Return the predictor of a task of images; its network is found by the name in it, or given if it moved."""
        from tapnet.inference.networks import NO_IMAGES
        from tapnet.inference.task import network_of

        model = network_of(task, network, device)
        if model.preprocessing is None:
            raise UserError(NO_IMAGES)
        return cls(task, model)

    @cached_property
    def example_logits(self) -> NDArray[np.float64]:
        """The logits of the examples of the task, (n, way)."""
        return self.network.logits(self.head, self.task.examples.features)

    def answers(self, pixels: Sequence[NDArray[np.uint8]], reject: Reject = 0.0, lose: float = LOSE) -> Answers:
        return self.answer_features(self.network.embed(pixels), reject, lose)

    def answer_features(self, features: NDArray[np.float32], reject: Reject = 0.0, lose: float = LOSE) -> Answers:
        """Return the answers to images that are embedded, (n, *feature_shape)."""
        logits = self.network.logits(self.head, features)
        rows = self.task.probabilities(logits)
        if reject == AUTO:
            return rows, self._rejection(lose).rejected(features, logits)
        return rows, rows.max(axis=1) < float(reject)

    def check_rejection(self, lose: float) -> None:
        self._rejection(lose)

    def _fit_rejection(self, lose: float) -> Rejection:
        from tapnet.inference.rejection import fit_rejection

        return fit_rejection(self.task, self.network, lose)


def open_predictor(path: str | Path, network: str | None = None, device: str = "cpu") -> Predictor:
    """Return what predicts by a task file, or by an ONNX file that `export` wrote.

    `network` is the path to the task's checkpoint, if it moved.
    """
    path = Path(path)
    check_task_path(path, allow_onnx=True)  # before anything slow is imported
    if path.suffix.lower() == ".onnx":
        from tapnet.inference.exported_task import OnnxPredictor

        return OnnxPredictor(path)
    from tapnet.inference.task import read_task

    return TaskPredictor.open(read_task(path), network, device)


def check_task_path(path: Path, allow_onnx: bool = False) -> None:
    """Raise UserError if the path is not that of a file, or is an exported task and `allow_onnx` is false."""
    onnx = path.suffix.lower() == ".onnx"
    if onnx and allow_onnx:
        return  # `OnnxPredictor` has its own words
    if path.is_dir():
        if (path / BEST).exists():
            raise UserError(trained_network_message(path))
        raise UserError(
            f"{path} is a folder, expected a task file: `tapnet fit {path} --out FILE` makes one of folders of classes."
        )
    if not path.is_file():
        raise NotFoundError(f"There is no task file {path}: make one with `tapnet fit FOLDER --out {path}`.")
    if onnx:
        raise UserError(f"{path} is an exported task, which `tapnet predict` takes; expected the task file itself.")


def trained_network_message(path: Path) -> str:
    """Return the message for a trained network where a task file is expected."""
    return (
        f"{path} is a trained network, which `tapnet evaluate {path}` measures; expected a task file, which "
        f"`tapnet fit FOLDER --network {path} --out FILE` makes with it."
    )


def rank_classes(rows: NDArray[np.floating], classes: Sequence[str], top: int) -> list[tuple[tuple[str, float], ...]]:
    """Return for each row of probabilities (n, way) the `top` classes with theirs, the most probable first."""
    order = np.argsort(-rows, axis=1, kind="stable")[:, :top]
    best = np.take_along_axis(rows, order, axis=1)
    return [
        tuple((classes[k], value) for k, value in zip(ks, values, strict=True))
        for ks, values in zip(order.tolist(), best.tolist(), strict=True)
    ]

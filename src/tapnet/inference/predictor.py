"""From a file to answers: open a task file or an exported one, and predict images. Nothing here needs PyTorch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tapnet.data.preprocessing import Preprocessing
from tapnet.errors import UserError
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
from tapnet.inference.task_path import check_task_path

UNKNOWN = "unknown"
AUTO, LOSE = "auto", 0.05  # reject by the task's own examples, losing this share of the known images
Reject = float | str  # a probability, or AUTO


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

    @property
    @abstractmethod
    def classes(self) -> tuple[str, ...]: ...

    @property
    @abstractmethod
    def preprocessing(self) -> Preprocessing: ...

    @property
    def hashes(self) -> frozenset[str]:
        """The sha-256 of the examples of the task; empty if they were not kept."""
        return frozenset()

    @abstractmethod
    def probabilities(self, pixels: Sequence[NDArray[np.uint8]]) -> NDArray[np.floating]:
        """Return (n, way) for prepared images (height, width, channels)."""

    def answers(
        self,
        pixels: Sequence[NDArray[np.uint8]],
        reject: Reject = 0.0,
        lose: float = LOSE,  # noqa: ARG002
    ) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
        """Return probabilities (n, way) of prepared images, and which images are rejected."""
        rows = self.probabilities(pixels)
        return rows, rows.max(axis=1) < float(reject)

    def predict(
        self, images: Iterable[ImageInput], top: int = 1, reject: Reject = 0.0, lose: float = LOSE
    ) -> list[Prediction]:
        """Return the `top` classes of each image; below the probability `reject` its label is "unknown".

        With `reject="auto"` the examples of the task decide, so that about the share `lose` of the images of its own
        classes is rejected. Raise UserError if an image cannot be read.
        """
        return [each for batch in self.predict_batches(images, top, reject, lose=lose) for each in batch]

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
        """Raise UserError unless this predictor takes images, can return so many classes and reject in this way."""
        _ = self.preprocessing  # there is none of a task of feature vectors
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


def open_predictor(path: str | Path, network: str | None = None, device: str = "cpu") -> Predictor:
    """Return what predicts by a task file, or by an ONNX file that `export` wrote.

    `network` is the path to the task's checkpoint, if it moved. Raise UserError if the file or its network is missing,
    damaged or another one than the task was fitted with.
    """
    path = Path(path)
    check_task_path(path, allow_onnx=True)
    if path.suffix.lower() == ".onnx":
        from tapnet.inference.onnx_predictor import OnnxPredictor

        return OnnxPredictor(path)
    from tapnet.inference.task_file import read_task
    from tapnet.inference.task_predictor import TaskPredictor

    return TaskPredictor.open(read_task(path), network, device)


def rank_classes(rows: NDArray[np.floating], classes: Sequence[str], top: int) -> list[tuple[tuple[str, float], ...]]:
    """Return for each row of probabilities (n, way) the `top` classes with theirs, the most probable first."""
    order = np.argsort(-rows, axis=1, kind="stable")[:, :top]
    best = np.take_along_axis(rows, order, axis=1)
    return [
        tuple((classes[k], value) for k, value in zip(ks, values, strict=True))
        for ks, values in zip(order.tolist(), best.tolist(), strict=True)
    ]

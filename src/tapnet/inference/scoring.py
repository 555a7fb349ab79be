"""How well a task does on labeled images: accuracy, mistakes, and what rejecting unsure answers costs and catches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tapnet.errors import UserError
from tapnet.inference.confusion import Confusion
from tapnet.inference.images import (
    Example,
    ImageInput,
    ImagesByClass,
    OnRead,
    OnUnreadable,
    check_images_by_class,
    name_of,
    read_labeled,
)
from tapnet.inference.predictor import LOSE, Prediction, Predictor, Reject

THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class Mistake:
    """An image whose most probable class is not its own."""

    image: str
    truth: str
    predicted: str
    probability: float


@dataclass(frozen=True)
class Threshold:
    """What rejecting below a probability, or by the examples, does, as shares; `None` where there is no such image."""

    reject: Reject
    correct_rejected: float | None  # of the images that were classified correctly: the cost
    mistakes_rejected: float | None  # of those that were not
    unknown_rejected: float | None  # of the images of classes that the task does not have


@dataclass(frozen=True)
class Score:
    """What a predictor makes of labeled images; classes that it does not have count as unknown ones."""

    confusion: Confusion
    predictions: tuple[tuple[str, Prediction], ...]  # (true class, prediction) of every image
    fitted: int  # images that are examples of the task
    reject: Reject = 0.0  # how the predictions were rejected

    @property
    def known(self) -> list[tuple[str, Prediction]]:
        """The images of classes of the task."""
        return [pair for pair in self.predictions if pair[0] in self.confusion.classes]

    @property
    def unknown(self) -> list[tuple[str, Prediction]]:
        """The images of other classes."""
        return [pair for pair in self.predictions if pair[0] not in self.confusion.classes]

    def mistakes(self) -> list[Mistake]:
        """Return the images that were classified wrongly, the most confident first."""
        wrong = [
            Mistake(name_of(each.image), truth, each.best, each.probability)
            for truth, each in self.known
            if each.best != truth
        ]
        return sorted(wrong, key=lambda mistake: -mistake.probability)

    def class_accuracies(self) -> dict[str, float]:
        """Return the accuracy of every class that has images."""
        totals, hits = self.confusion.counts.sum(axis=1), np.diag(self.confusion.counts)
        rows = zip(self.confusion.classes, totals, hits, strict=True)
        return {name: float(right / total) for name, total, right in rows if total}

    def thresholds(self, values: Sequence[float] = THRESHOLDS) -> list[Threshold]:
        """Return what each threshold of rejection costs and catches."""

        def below(value: float) -> Threshold:
            return self._threshold(value, lambda each: each.probability < value)

        return list(map(below, values))

    def rejection(self) -> Threshold | None:
        """Return what rejecting as asked for costs and catches; `None` if nothing was asked for."""
        return self._threshold(self.reject, lambda each: each.rejected) if self.reject else None

    def _threshold(self, reject: Reject, rejected: Callable[[Prediction], bool]) -> Threshold:
        right = [rejected(each) for truth, each in self.known if each.best == truth]
        wrong = [rejected(each) for truth, each in self.known if each.best != truth]
        groups = right, wrong, [rejected(each) for _, each in self.unknown]
        return Threshold(reject, *(float(np.mean(group)) if group else None for group in groups))

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        return (
            self.confusion.as_dict()
            | {
                "class_accuracy": self.class_accuracies(),
                "mistakes": [asdict(mistake) for mistake in self.mistakes()],
                "unknown": len(self.unknown),
                "thresholds": [asdict(each) for each in self.thresholds()],
                "fitted": self.fitted,
            }
            | ({"rejection": asdict(asked)} if (asked := self.rejection()) else {})
        )


def score(
    predictor: Predictor,
    images: ImagesByClass,
    on_unreadable: OnUnreadable | None = None,
    on_read: OnRead | None = None,
    reject: Reject = 0.0,
    lose: float = LOSE,
) -> Score:
    """Return how a predictor classifies images whose classes are known; `reject` and `lose` are as for `predict`.

    Raise UserError if no image is of a class of the predictor.
    """
    check_images_by_class(images)
    truths: list[str] = []

    def examples() -> Iterator[tuple[ImageInput, Example]]:
        for truth, image, example in read_labeled(images, predictor.preprocessing, on_unreadable, on_read):
            truths.append(truth)
            yield image, example

    found = [each for batch in predictor.predict_examples(examples(), reject=reject, lose=lose) for each in batch]
    predictions = tuple(zip(truths, found, strict=True))
    known = [(truth, each.best) for truth, each in predictions if truth in predictor.classes]
    if not known:
        raise UserError(
            f"No image that can be read is of a class of the task; it has {', '.join(predictor.classes)}, got "
            f"{', '.join(images) or 'none'}."
        )
    fitted = sum(each.sha256 in predictor.hashes for each in found)
    return Score(Confusion.of(predictor.classes, known), predictions, fitted, reject)

"""How well a task does on labeled images: accuracy, confusions, and what rejecting unsure answers costs and catches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binomtest

from tapnet.errors import UserError
from tapnet.evaluation.plotting import new_figure, save
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
from tapnet.text import pluralize, shorten

THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SHOWN = 25  # classes in the figure; of more, those with the most mistakes


@dataclass(frozen=True)
class Confusion:
    """`counts[i, j]`: images of class i that were classified as j."""

    classes: tuple[str, ...]
    counts: NDArray[np.int64]

    @classmethod
    def of(cls, classes: tuple[str, ...], pairs: Iterable[tuple[str, str]]) -> Confusion:
        """Return the counts of pairs (true class, predicted class)."""
        counts, rows = np.zeros((len(classes), len(classes)), np.int64), {name: k for k, name in enumerate(classes)}
        for truth, predicted in pairs:
            counts[rows[truth], rows[predicted]] += 1
        return cls(classes, counts)

    @property
    def hits(self) -> int:
        return int(np.trace(self.counts))

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    @property
    def accuracy(self) -> float:
        return self.hits / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval of the accuracy."""
        bounds = binomtest(self.hits, self.total).proportion_ci(method="wilson")
        return float(bounds.low), float(bounds.high)

    def worst(self, most: int = SHOWN) -> Confusion:
        """Return the counts among the classes with the most mistakes, from or to them; all if there are few."""
        if len(self.classes) <= most:
            return self
        wrong = self.counts - np.diag(np.diag(self.counts))
        chosen = np.sort(np.argsort(-(wrong.sum(axis=0) + wrong.sum(axis=1)), kind="stable")[:most])
        return Confusion(tuple(self.classes[k] for k in chosen), self.counts[np.ix_(chosen, chosen)])


def confusion_figure(confusion: Confusion, out: Path) -> Path:
    """Save a square for each pair of classes, darker the larger its share of the row; of many classes the worst."""
    shown = confusion.worst()
    way = len(shown.classes)
    side = min(14.0, 3.2 + 0.42 * way)
    figure, axis = new_figure(side + 0.8, side)
    totals = confusion.counts.sum(axis=1)[[confusion.classes.index(name) for name in shown.classes]]
    shares = shown.counts / np.maximum(totals, 1)[:, None]
    axis.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    names = [shorten(name, 24) for name in shown.classes]
    axis.set_xticks(range(way), names, rotation=45, ha="right", rotation_mode="anchor", fontsize=9)
    axis.set_yticks(range(way), names, fontsize=9)
    axis.set(xlabel="predicted class", ylabel="true class")
    part = f"\n{way} of {len(confusion.classes)} classes: those with the most mistakes"
    title = f"{100 * confusion.accuracy:.1f}% of {pluralize(confusion.total, 'image')} correct"
    axis.set_title(title if shown is confusion else title + part)
    for i, j in np.argwhere(shown.counts):
        color = "white" if shares[i, j] > 0.5 else "black"
        axis.text(j, i, str(shown.counts[i, j]), ha="center", va="center", color=color, fontsize=9)
    return save(figure, out)


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
        wrong = [(truth, answer) for truth, answer in self.known if answer.best != truth]
        mistakes = [Mistake(name_of(given.image), truth, given.best, given.probability) for truth, given in wrong]
        return sorted(mistakes, key=lambda mistake: -mistake.probability)

    def class_accuracies(self) -> dict[str, float]:
        """Return the accuracy of every class that has images."""
        totals, hits = self.confusion.counts.sum(axis=1), np.diag(self.confusion.counts)
        rows = zip(self.confusion.classes, totals, hits, strict=True)
        return {name: float(right / total) for name, total, right in rows if total}

    def thresholds(self, values: Sequence[float] = THRESHOLDS) -> list[Threshold]:
        """Return what each threshold of rejection costs and catches."""
        return [self._threshold(value) for value in values]

    def rejection(self) -> Threshold | None:
        """Return what rejecting as asked for costs and catches; `None` if nothing was asked for."""
        return self._threshold(self.reject, as_predicted=True) if self.reject else None

    def _threshold(self, reject: Reject, as_predicted: bool = False) -> Threshold:
        def rejected(given: Prediction) -> bool:
            return given.rejected if as_predicted else given.probability < float(reject)

        right = [rejected(given) for truth, given in self.known if given.best == truth]
        wrong = [rejected(given) for truth, given in self.known if given.best != truth]
        groups = right, wrong, [rejected(given) for _, given in self.unknown]
        return Threshold(reject, *(float(np.mean(group)) if group else None for group in groups))

    def as_dict(self) -> dict[str, Any]:
        """Return everything as plain values, for JSON."""
        confusion, asked = self.confusion, self.rejection()
        return {
            "accuracy": confusion.accuracy,
            "ci95": confusion.interval,
            "images": confusion.total,
            "classes": confusion.classes,
            "confusion": confusion.counts.tolist(),
            "class_accuracy": self.class_accuracies(),
            "mistakes": [asdict(mistake) for mistake in self.mistakes()],
            "unknown": len(self.unknown),
            "thresholds": [asdict(threshold) for threshold in self.thresholds()],
            "fitted": self.fitted,
        } | ({"rejection": asdict(asked)} if asked else {})


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

    batches = predictor.predict_examples(examples(), reject=reject, lose=lose)
    answers = [answer for batch in batches for answer in batch]
    predictions = tuple(zip(truths, answers, strict=True))
    known = [(truth, answer.best) for truth, answer in predictions if truth in predictor.classes]
    if not known:
        raise UserError(
            f"No image that can be read is of a class of the task; it has {', '.join(predictor.classes)}, got "
            f"{', '.join(images) or 'none'}."
        )
    fitted = sum(answer.sha256 in predictor.hashes for answer in answers)
    return Score(Confusion.of(predictor.classes, known), predictions, fitted, reject)

import math

import numpy as np
import pytest

from tapnet.data import load_dataset
from tapnet.errors import UserError
from tapnet.inference import class_folders, open_predictor, score
from tapnet.inference import scoring as figures
from tapnet.inference.scoring import SHOWN, Confusion, confusion_figure


@pytest.fixture
def new(drawing_folders):
    return class_folders(drawing_folders / "new").classes


@pytest.fixture
def many():
    """100 classes of 5 images, of which classes 90 to 99 are all taken for the next one."""
    counts = 5 * np.eye(100, dtype=np.int64)
    counts[90:] = np.roll(counts[90:], 1, axis=1)
    return Confusion(tuple(f"class {k}" for k in range(100)), counts)


def test_interval_is_that_of_wilson():
    z, n, p = 1.959964, 20, 0.9
    interval = Confusion.of(("a", "b"), [("a", "a")] * 18 + [("b", "a")] * 2).interval
    middle, half = (p + z * z / (2 * n)), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    assert interval == pytest.approx(((middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)))


def test_worst_classes_are_those_with_mistakes_from_or_to_them(many):
    few = Confusion(("a", "b"), np.eye(2, dtype=np.int64))
    assert few.worst() is few
    worst = many.worst()
    assert len(worst.classes) == SHOWN
    assert {f"class {k}" for k in (*range(90, 100), 0)} <= set(worst.classes)


def test_figure_of_many_classes_says_that_it_shows_the_worst(many, monkeypatch, tmp_path):
    monkeypatch.setattr(figures, "save", lambda figure, _: figure)
    axis = confusion_figure(many, tmp_path / "a.png").get_axes()[0]
    assert axis.get_title().endswith("25 of 100 classes: those with the most mistakes")
    assert len(axis.get_xticklabels()) == 25


def test_score_counts_mistakes_accuracies_rejections_and_other_classes_as_unknown(drawing_task, new):
    drawings = load_dataset("quickdraw", "test")
    strange = [255 - pixels for pixels in drawings.gather(np.arange(6))]
    result = score(open_predictor(drawing_task), {**new, "something else": strange})
    assert result.confusion.total == len(result.known) == 8
    assert len(result.unknown) == 6
    assert len(result.mistakes()) == 8 - np.trace(result.confusion.counts)
    assert np.mean(list(result.class_accuracies().values())) == pytest.approx(result.confusion.accuracy)
    assert result.fitted == 0
    nothing, *_, everything = result.thresholds((0.0, 0.5, 1.1))
    assert (nothing.correct_rejected, nothing.unknown_rejected) == (0, 0)
    assert (everything.correct_rejected, everything.unknown_rejected) == (1, 1)


def test_score_needs_an_image_of_a_class_of_the_task(drawing_task):
    with pytest.raises(UserError, match="No image that can be read is of a class of the task"):
        score(open_predictor(drawing_task), {"other": [np.zeros((9, 9), np.uint8)]})

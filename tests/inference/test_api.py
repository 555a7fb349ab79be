"""The functions that command line, classifier and server call, in images and without flags."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tapnet import inference
from tapnet.errors import UserError
from tapnet.evaluation.embedding import Embedder
from tapnet.inference import (
    add,
    class_folders,
    compare_methods,
    describe,
    estimate_accuracy,
    explain,
    fit,
    open_predictor,
    read_task,
    remove,
    score,
    write_task,
)
from tapnet.inference.predictor import TaskPredictor


@pytest.fixture(scope="module")
def images(drawing_folders):
    return class_folders(drawing_folders / "fit").classes


@pytest.fixture(scope="module")
def new(drawing_folders):
    return class_folders(drawing_folders / "new").classes


@pytest.fixture(scope="module")
def task(images):
    return fit(images)


@pytest.fixture(scope="module")
def path(task, tmp_path_factory):
    path = tmp_path_factory.mktemp("api") / "a.task"
    write_task(task, path)
    return path


def weight_of(task):
    return TaskPredictor.open(task).head.weight


def test_no_message_of_the_layer_names_a_flag():
    for file in Path(inference.__file__).parent.glob("*.py"):
        flags = re.findall(r"(?<![\w-])--[a-z][\w-]*", file.read_text(encoding="utf-8"))
        commands = {"--out", "--onnx", "--network"} if file.name in ("predictor.py", "exported_task.py") else set()
        assert set(flags) <= commands, file.name  # whole commands that make the missing file


def test_predictor_ranks_classes_and_keeps_the_best_guess_of_a_rejected_image(path, new):
    image = next(iter(new.values()))[0]
    (sure,), (unsure,) = (open_predictor(path).predict([image], top=3, reject=reject) for reject in (0.0, 1.0))
    assert [name for name, _ in sure.ranked] == [name for name, _ in unsure.ranked]
    assert (sure.label, unsure.label, unsure.best) == (sure.best, "unknown", sure.best)
    assert sure.probability == max(value for _, value in sure.ranked)


def test_predictor_raises_for_an_image_that_cannot_be_read_unless_told_what_to_do(path, new):
    images, broken = [next(iter(new.values()))[0], b"nothing"], []
    predictor = open_predictor(path)
    with pytest.raises(UserError, match="The image cannot be read: not an image"):
        predictor.predict(images)
    batches = predictor.predict_batches(images, on_unreadable=lambda image, reason: broken.append((image, reason)))
    assert sum(map(len, batches)) == 1
    assert broken == [(b"nothing", "not an image of a known format")]


def test_predictor_answers_alike_in_several_threads(path, new):
    predictor, images = open_predictor(path), [image for images in new.values() for image in images]
    expected = predictor.predict(images, top=4)
    with ThreadPoolExecutor(4) as pool:
        for answers in pool.map(lambda _: predictor.predict(images, top=4), range(8)):
            for ours, theirs in zip(answers, expected, strict=True):
                assert dict(ours.ranked) == pytest.approx(dict(theirs.ranked), abs=1e-5)


def test_added_and_removed_classes_leave_the_task_as_it_was(task, images):
    first = task.classes[0]
    smaller = remove(task, classes=[first])
    assert first not in smaller.classes
    assert first in task.classes
    back = add(smaller, {first: images[first]})
    np.testing.assert_allclose(weight_of(back), weight_of(task), atol=1e-4)


BLACK, GRAY = np.zeros((9, 9), np.uint8), np.ones((9, 9), np.uint8)


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ({}, "at least 2 classes, got 0: none"),
        ({"a": [BLACK]}, "at least 2 classes, got 1: a"),
        ({"a": [BLACK], "b": [BLACK]}, "'a' and 'b' have an image in common"),
        ({"a": [BLACK], "b": []}, "No image of class 'b' can be read"),
        ({"a": [BLACK], " ": [GRAY]}, "Expected the name of a class, got ' '"),
    ],
)
def test_fit_says_why_classes_cannot_be_learned(images, words):
    with pytest.raises(UserError, match=words):
        fit(images, network="drawings")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["a.png", "b.png"], "Expected images by class"),
        ({1: ["a.png"], 2: ["b.png"]}, "Expected the name of a class, got 1"),
        ({"a": "a.png", "b": "b.png"}, "Expected a list of images of class 'a', got 'a.png'"),
    ],
)
def test_images_by_class_of_another_shape_are_refused(given, words, path):
    for refuse in (fit, lambda images: score(open_predictor(path), images)):
        with pytest.raises(UserError, match=re.escape(words)):
            refuse(given)


@pytest.mark.parametrize("image", ["a.png", b"bytes"])
def test_predict_refuses_a_single_image(path, image):
    with pytest.raises(UserError, match="Expected a list of images"):
        open_predictor(path).predict(image)


def test_explanation_agrees_with_the_prediction(path, new, tmp_path):
    image = next(iter(new.values()))[1].read_bytes()
    explanation = explain(read_task(path), image)
    (predicted,) = open_predictor(path).predict([image], top=4)
    assert dict(explanation.ranked) == pytest.approx(dict(predicted.ranked), abs=1e-6)
    assert explanation.figure(tmp_path / "why.png").stat().st_size > 10_000


@pytest.mark.parametrize("classes", [2, 3])
def test_explanation_shows_a_picture_in_which_the_closest_center_wins(classes, task, new, tmp_path):
    few = remove(task, classes=task.classes[classes:])
    for image in [image for name in few.classes for image in new[name]]:
        explanation = explain(few, image)
        picture = explanation.picture
        nearest = np.square(picture.centers - picture.query).sum(axis=1).argmin()
        assert few.classes[picture.classes[nearest]] == explanation.label
    assert explanation.figure(tmp_path / "why.png").stat().st_size > 10_000


def test_description_of_a_task_counts_its_examples(path, task):
    described = describe(path)
    assert described["classes"] == dict(zip(task.classes, task.shots(), strict=True))
    names = "kind", "network", "method", "examples"
    assert [described[name] for name in names] == ["task", "drawings", "tapnet", 12]


def test_fit_embeds_while_it_reads(monkeypatch):
    """So that a progress bar shows all of the work, and memory holds a batch of pixels."""
    events = []
    embed = Embedder.__call__
    monkeypatch.setattr(Embedder, "__call__", lambda *args: events.append("embedded") or embed(*args))
    pixels = np.random.default_rng(0).integers(0, 256, (200, 9, 9), np.uint8)
    fit({"a": pixels[:100], "b": pixels[100:]}, "drawings", "centroid", on_read=lambda: events.append("read"))
    assert events.count("read") == 200
    assert events.index("embedded") <= 64


def test_compare_methods_reports_every_round_and_has_the_estimate_of_the_task_first(task):
    done, estimate = [], estimate_accuracy(task)
    accuracies = compare_methods(task, progress=lambda *counts: done.append(counts))
    assert done == [(number, len(done)) for number in range(1, len(done) + 1)]
    assert len(done) == 3 * len(accuracies)  # three examples of each class
    np.testing.assert_array_equal(next(iter(accuracies.values())).counts, estimate.counts)
    low, high = estimate.interval
    assert low < estimate.accuracy < high or estimate.accuracy in (0, 1)
    assert estimate.total == 12


def test_every_public_name_of_the_layer_is_there():
    assert all(getattr(inference, name) is not None for name in inference.__all__)


def test_examples_are_removed_by_their_content(task, images):
    first = task.classes[0]
    assert remove(task, images=[images[first][0].read_bytes()]).shots()[0] == 2
    with pytest.raises(UserError, match="The image is not an example of the task"):
        remove(task, images=[np.zeros((5, 5), np.uint8)])
    with pytest.raises(UserError, match="The task has no class 'nothing'; it has "):
        remove(task, classes=["nothing"])


def test_task_keeps_a_thumbnail_of_every_example(task):
    assert [thumbnail[:2] for thumbnail in task.examples.thumbnails] == [b"\xff\xd8"] * 12

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from torch import nn

from tapnet.backbones import Backbone
from tapnet.errors import UserError
from tapnet.inference import fit_task, rejection
from tapnet.inference.networks import vector_model
from tapnet.inference.predictor import TaskPredictor
from tapnet.inference.rejection import (
    KnownClassScores,
    class_centers,
    fit_rejection,
    lower_bound,
    read_background,
)
from tapnet.inference.task import Examples

DIM, WAY = 16, 4


def scattered(count, seed, classes=range(WAY), spread=0.25):
    """So many vectors of each class, around a center of its own."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(classes)), count)
    centers = np.eye(DIM, dtype=np.float32)[list(classes)]
    noise = spread * generator.standard_normal((len(labels), DIM))
    return (centers[labels] + noise).astype(np.float32), labels


def task_of(count, method="logistic", seed=0):
    features, labels = scattered(count, seed)
    hashes = tuple(str(number) for number in range(len(labels)))
    return fit_task("abcd", Examples(features, labels, hashes, (b"",) * len(labels)), vector_model(DIM), method)


def rejected(task, features, lose=0.05):
    """Which of these images the task calls unknown by its examples."""
    return TaskPredictor(task, vector_model(DIM)).answer_features(features, "auto", lose)[1]


@pytest.mark.parametrize("method", ["logistic", "centroid", "protonet"])
def test_rejection_by_the_examples_loses_about_the_share_that_was_asked_for(method):
    known, _ = scattered(500, seed=1)
    lost = [rejected(task_of(20, method, seed), known, 0.1).mean() for seed in range(5)]
    assert np.mean(lost) == pytest.approx(0.1, abs=0.05)


def test_rejection_by_the_examples_catches_most_images_of_other_classes():
    strange, _ = scattered(200, seed=2, classes=range(8, 12))
    assert rejected(task_of(10), strange).mean() > 0.8


@pytest.mark.parametrize("count", [2, 3, 5])
def test_rejection_by_few_examples_loses_about_what_was_asked_for(count):
    known, _ = scattered(100, seed=1)
    lost = [rejected(task_of(count, "centroid", seed), known).mean() for seed in range(40)]
    assert 0.02 < np.mean(lost) < 0.08


@pytest.mark.parametrize("count", [4, 15, 60])
def test_lower_bound_of_normal_scores_has_the_share_below_it(count):
    scores = np.random.default_rng(0).standard_normal((20_000, count + 1))
    below = [row[-1] < lower_bound(row[:-1], 0.05) for row in scores]
    assert np.mean(below) == pytest.approx(0.05, abs=0.005)


@pytest.mark.parametrize("count", [1, 2])
def test_rejection_by_a_single_example_or_copies_of_it_is_refused(count):
    task = task_of(count)
    copies = replace(task.examples, hashes=("0",) * count + task.examples.hashes[count:])
    with pytest.raises(UserError, match="needs 2 different images of every class, got 1 of 'a'") as refusal:
        fit_rejection(replace(task, examples=copies), vector_model(DIM))
    assert refusal.value.parameter == "reject"


@pytest.mark.parametrize("lose", [0, 1])
def test_rejection_of_no_share_is_refused(lose):
    with pytest.raises(UserError, match="Expected `lose` to be a share between 0 and 1"):
        fit_rejection(task_of(5), vector_model(DIM), lose)


def known_scores(features, background=None):
    """The scores of images by a task of centroids."""
    task, model = task_of(5, "centroid"), vector_model(DIM)
    logits = model.logits(TaskPredictor(task, model).head, features)
    return KnownClassScores(np.eye(DIM, dtype=np.float32)[:WAY], background)(features, logits)


def test_image_closer_to_public_classes_than_another_has_the_lower_score():
    """Two images with the same cosines to the classes of the task, of which one lies on a public class."""
    queries = np.zeros((2, DIM), np.float32)
    queries[:, 0] = 1
    queries[0, 10], queries[1, 9] = 1, 1
    scores = known_scores(queries, np.eye(DIM, dtype=np.float32)[10:15])
    assert next(iter(scores)) == "background"
    assert scores["similarity"][0] == pytest.approx(scores["similarity"][1], abs=0.05)
    assert scores["background"][0] < scores["background"][1] - 0.05
    assert list(known_scores(queries)) == ["similarity", "probability"]


def test_class_centers_are_mean_directions():
    examples = Examples(np.float32([[3, 4], [0, 2], [2, 0]]), np.array([0, 0, 1]), tuple("abc"), (b"",) * 3)
    np.testing.assert_allclose(class_centers(examples), [np.array([1, 3]) / 10**0.5, [1, 0]], atol=1e-6)


def test_rejection_takes_the_score_that_tells_the_classes_apart_when_they_are_left_out(monkeypatch):
    """Public classes that lie on two classes of the task mislead the first score, which the examples notice."""
    task, model = task_of(10), vector_model(DIM)
    public = np.concatenate([np.eye(DIM, dtype=np.float32)[:2]] * rejection.NEAREST)
    monkeypatch.setattr(rejection, "read_background", lambda _: public)
    assert fit_rejection(task, model).score == "background"
    monkeypatch.setattr(rejection, "BACKGROUND_WEIGHT", 3.0)
    assert fit_rejection(task, model).score == "similarity"


def test_rejection_of_two_classes_takes_the_first_score():
    features, labels = scattered(6, 0, classes=range(2))
    hashes = tuple(map(str, range(len(labels))))
    task = fit_task("ab", Examples(features, labels, hashes, (b"",) * len(labels)), vector_model(DIM), "centroid")
    assert fit_rejection(task, vector_model(DIM)).score == "similarity"


class Metric(Backbone):
    """Pools maps by their mean and maps the result by a matrix that turns it around."""

    def __init__(self):
        super().__init__()
        self.image_shape, self.dim = (3, 8, 8), 4
        self.metric = nn.Linear(4, 4, bias=False)
        nn.init.eye_(self.metric.weight)

    def pool(self, maps):
        return self.metric(maps.mean(dim=(2, 3)))


def network(backbone, sha256="abc"):
    return SimpleNamespace(name="net", sha256=sha256, device="cpu", method=SimpleNamespace(backbone=backbone))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(rejection, "BACKGROUND", tmp_path)
    return tmp_path


def test_background_goes_through_the_metric_of_the_network(folder):
    roots = np.array([[255, 0, 0, 0], [0, 255, 255, 0]], np.uint8)
    save_file({"square_roots": roots}, folder / "net.safetensors", {"network_sha256": "abc"})
    backbone = Metric()
    with torch.no_grad():
        backbone.metric.weight.copy_(torch.eye(4).flip(0))
    directions = read_background(network(backbone))
    np.testing.assert_allclose(directions, [[0, 0, 0, 1], [0, 0.5**0.5, 0.5**0.5, 0]], atol=1e-6)


def test_background_is_that_of_the_network_or_none(folder):
    save_file({"square_roots": np.ones((2, 4), np.uint8)}, folder / "net.safetensors", {"network_sha256": "abc"})
    assert read_background(network(Metric(), "def")) is None
    (folder / "net.safetensors").unlink()
    assert read_background(network(Metric())) is None

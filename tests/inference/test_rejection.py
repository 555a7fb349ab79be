from dataclasses import replace

import numpy as np
import pytest

from tapnet.errors import UserError
from tapnet.inference import rejection
from tapnet.inference.examples import Examples
from tapnet.inference.networks import vector_model
from tapnet.inference.rejection import Familiarity, class_centers, fit_rejection, lower_bound
from tapnet.inference.task import fit_task

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


@pytest.mark.parametrize("method", ["logistic", "centroid", "protonet"])
def test_rejection_by_the_examples_loses_about_the_share_that_was_asked_for(method):
    known, _ = scattered(500, seed=1)
    lost = [
        fit_rejection(task_of(20, method, seed), vector_model(DIM), 0.1).rejected(known).mean() for seed in range(5)
    ]
    assert np.mean(lost) == pytest.approx(0.1, abs=0.05)


def test_rejection_by_the_examples_catches_most_images_of_other_classes():
    strange, _ = scattered(200, seed=2, classes=range(8, 12))
    assert fit_rejection(task_of(10), vector_model(DIM)).rejected(strange).mean() > 0.8


def test_rejection_by_the_examples_loses_more_if_it_may():
    known, _ = scattered(200, seed=3)
    task, model = task_of(10), vector_model(DIM)
    few, many = (fit_rejection(task, model, lose).rejected(known).sum() for lose in (0.02, 0.3))
    assert few < many


@pytest.mark.parametrize("count", [2, 3, 5])
def test_rejection_by_few_examples_loses_about_what_was_asked_for(count):
    known, _ = scattered(100, seed=1)
    lost = [
        fit_rejection(task_of(count, "centroid", seed), vector_model(DIM)).rejected(known).mean() for seed in range(40)
    ]
    assert 0.02 < np.mean(lost) < 0.08


@pytest.mark.parametrize("count", [4, 15, 60])
def test_lower_bound_of_normal_scores_has_the_share_below_it(count):
    scores = np.random.default_rng(0).standard_normal((20_000, count + 1))
    below = [row[-1] < lower_bound(row[:-1], 0.05) for row in scores]
    assert np.mean(below) == pytest.approx(0.05, abs=0.005)


def test_rejection_by_a_single_example_is_refused_in_one_sentence():
    with pytest.raises(UserError, match="needs 2 different images of every class, got 1 of 'a'") as refusal:
        fit_rejection(task_of(1), vector_model(DIM))
    assert refusal.value.parameter == "reject"


def test_rejection_counts_copies_of_an_image_once():
    task = task_of(2)
    copies = replace(task.examples, hashes=("0", "0", *task.examples.hashes[2:]))
    with pytest.raises(UserError, match="got 1 of 'a'"):
        fit_rejection(replace(task, examples=copies), vector_model(DIM))


@pytest.mark.parametrize("lose", [0, 1, -0.1, 5])
def test_rejection_of_no_share_is_refused(lose):
    with pytest.raises(UserError, match="Expected `lose` to be a share between 0 and 1"):
        fit_rejection(task_of(5), vector_model(DIM), lose)


def test_image_closer_to_public_classes_than_another_has_the_lower_score():
    """Two images with the same cosines to the classes of the task, of which one lies on a public class."""
    task = task_of(5, "centroid")
    background = np.eye(DIM, dtype=np.float32)[[10, 11, 12, 13, 14]]
    queries = np.zeros((2, DIM), np.float32)
    queries[:, 0] = 1
    queries[0, 10], queries[1, 9] = 1, 1
    centers = np.eye(DIM, dtype=np.float32)[:WAY]
    scores = Familiarity(task.head, centers, background).scores(queries)
    assert next(iter(scores)) == "background"
    assert scores["similarity"][0] == pytest.approx(scores["similarity"][1], abs=0.05)
    assert scores["background"][0] < scores["background"][1] - 0.05


def test_scores_without_public_classes_are_similarity_and_probability():
    task = task_of(5)
    scores = Familiarity(task.head, class_centers(task.examples)).scores(task.examples.features)
    assert list(scores) == ["similarity", "probability"]


def test_rejection_takes_the_score_that_tells_the_classes_apart_when_they_are_left_out(monkeypatch):
    """Public classes that lie on two classes of the task mislead the first score, which the examples notice."""
    task, model = task_of(10), vector_model(DIM)
    model.__dict__["background"] = np.concatenate([np.eye(DIM, dtype=np.float32)[:2]] * rejection.NEAREST)
    assert fit_rejection(task, model).score == "background"
    monkeypatch.setattr(rejection, "BACKGROUND_WEIGHT", 3.0)
    assert fit_rejection(task, model).score == "similarity"


def test_rejection_of_two_classes_takes_the_first_score():
    features, labels = scattered(6, 0, classes=range(2))
    hashes = tuple(map(str, range(len(labels))))
    task = fit_task("ab", Examples(features, labels, hashes, (b"",) * len(labels)), vector_model(DIM), "centroid")
    assert fit_rejection(task, vector_model(DIM)).score == "similarity"

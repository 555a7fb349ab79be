import numpy as np
import pytest

from tapnet.evaluation.calibration import Calibration, calibration_error
from tapnet.inference.examples import Examples
from tapnet.inference.networks import load_network, vector_model
from tapnet.inference.task import fit_task
from tapnet.inference.temperature import spread, usual_temperature

DIM, WAY = 32, 5


def scattered(count, seed, scale=1.0, offset=0.0):
    """So many vectors of each class, around a center of its own."""
    labels = np.repeat(np.arange(WAY), count)
    noise = 0.28 * np.random.default_rng(seed).standard_normal((len(labels), DIM))
    features = scale * (np.eye(DIM)[labels] + noise + offset)
    return features.astype(np.float32), labels


def task_of(features, labels, method):
    hashes = tuple(map(str, range(len(labels))))
    return fit_task("abcde", Examples(features, labels, hashes, (b"",) * len(labels)), vector_model(DIM), method)


@pytest.mark.parametrize("method", ["centroid", "logistic", "protonet"])
@pytest.mark.parametrize("count", [1, 2, 5])
def test_feature_vectors_get_probabilities_that_are_near_their_accuracy(method, count):
    sure, right = [], []
    queries, answers = scattered(20, seed=100)
    for seed in range(8):
        found = task_of(*scattered(count, seed), method).probabilities(queries)
        sure.append(found.max(axis=1))
        right.append(found.argmax(axis=1) == answers)
    assert calibration_error(np.concatenate(sure), np.concatenate(right)) < 0.2


@pytest.mark.parametrize("method", ["centroid", "protonet"])
def test_usual_temperature_follows_the_scale_of_logits(method):
    """Logits of the cosine centroid shrink with an offset that all features share, those of protonet with the scale."""
    features, labels = scattered(3, 0)
    changed, _ = scattered(3, 0, scale=0.1) if method == "protonet" else scattered(3, 0, offset=0.5)
    assert usual_temperature(method, changed, labels) < 0.5 * usual_temperature(method, features, labels)


def test_spread_is_half_the_mean_squared_distance_between_classes():
    points, labels = np.random.default_rng(0).random((6, 4)), np.repeat([0, 1, 2], 2)
    distances = np.square(points[:, None] - points[None]).sum(axis=-1)
    assert spread(points, labels) == pytest.approx(distances[labels[:, None] != labels[None]].mean() / 2)


def test_copies_of_one_vector_still_have_a_temperature():
    task = task_of(np.ones((5, DIM), np.float32), np.arange(5), "centroid")
    assert np.isfinite(task.probabilities(np.ones((1, DIM), np.float32))).all()


def test_calibrated_network_keeps_its_own_temperature():
    model = load_network("drawings")
    features = np.random.default_rng(0).random((4, model.method.backbone.dim)).astype(np.float32)
    task = fit_task("ab", Examples(features, np.array([0, 0, 1, 1]), tuple("abcd"), (b"",) * 4), model, "centroid")
    assert task.temperature == Calibration(model.calibration.tables).temperature("centroid", [2, 2])

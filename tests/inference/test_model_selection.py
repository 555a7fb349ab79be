"""What is decided for a task where nobody does: its method and its temperature; and leave-one-out."""

from dataclasses import replace

import numpy as np
import pytest

from tapnet.backbones import PrecomputedFeatures
from tapnet.data.preprocessing import Preprocessing
from tapnet.evaluation.calibration import calibration_error
from tapnet.inference import fit_task, leave_one_out, load_network
from tapnet.inference.model_selection import (
    USUAL,
    choose_method,
    corrected_temperature,
    likeness_factor,
    spread,
    usual_temperature,
)
from tapnet.inference.networks import EmbeddingModel, vector_model
from tapnet.inference.predictor import TaskPredictor
from tapnet.inference.task import Examples
from tapnet.methods import METHODS

DIM, WAY = 32, 5


def examples_of(features, labels):
    return Examples(np.float32(features), labels, tuple(map(str, range(len(labels)))), (b"",) * len(labels))


def drawn(shot, way=3):
    """Features of so many classes that lie where those of `drawings` do."""
    labels = np.repeat(np.arange(way), shot)
    noise = np.random.default_rng(0).standard_normal((len(labels), 512))
    return examples_of(10 * (np.eye(way, 512)[labels] + 0.1 * noise), labels)


def scattered(count, seed, scale=1.0, offset=0.0):
    """So many vectors of each of five classes, around a center of its own."""
    labels = np.repeat(np.arange(WAY), count)
    noise = 0.28 * np.random.default_rng(seed).standard_normal((len(labels), DIM))
    return np.float32(scale * (np.eye(DIM)[labels] + noise + offset)), labels


def noise(classes, shot, dim=64, copies=1):
    """Random vectors, each there several times: nothing can be learned from them."""
    features = np.random.default_rng(2).normal(size=(classes * shot, dim))
    once = examples_of(features, np.repeat(np.arange(classes), shot))
    return once.take(np.repeat(np.arange(len(once)), copies))


def test_method_is_tapnet_with_references_logistic_without_and_the_centroid_for_vectors():
    drawings = load_network("drawings")
    assert choose_method(drawings)[:2] == ("tapnet", {"reference_shots": 2})
    assert choose_method(replace(vector_model(8), preprocessing=Preprocessing(28, 28, 1))).name == "logistic"
    assert choose_method(vector_model(8)).name == "centroid"
    other = METHODS["tadam-alpha"](PrecomputedFeatures(8)).eval()  # what a network was trained for stays
    assert choose_method(replace(drawings, method=other)).name == "tadam-alpha"


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        (None, None, {"reference_shots": 2}),
        ("auto", None, {"reference_shots": 2}),
        ("tapnet", None, {}),
        (None, {"projection_dim": 20}, {"projection_dim": 20}),
    ],
    ids=["no name", "auto", "the paper's by its name", "the network's own with options"],
)
def test_method_of_a_task_is_that_by_the_rule_unless_a_name_or_options_are_given(name, options, expected):
    task = fit_task("abc", drawn(3), load_network("drawings"), name, options)
    assert (task.method, task.options) == ("tapnet", expected)


def test_temperature_follows_the_scale_of_the_logits():
    """A reference that counts for very many images changes nothing, also not the temperature."""
    model = load_network("drawings")
    paper, blended = (fit_task("abc", drawn(1), model, "tapnet", {"reference_shots": x}) for x in (None, 1e6))
    assert blended.temperature == pytest.approx(paper.temperature, rel=1e-3)


def test_temperature_of_blended_references_is_higher_where_held_out_examples_are_hard_to_tell():
    model, easy = load_network("drawings"), drawn(6)
    mixed = replace(easy, features=easy.features[np.random.default_rng(1).permutation(len(easy))])
    assert fit_task("abc", mixed, model).temperature > 2 * fit_task("abc", easy, model).temperature


def test_temperature_is_that_of_the_networks_projection_and_scales_to_another():
    model, examples = load_network("drawings"), drawn(1)
    narrow = replace(model, method=model.method.with_options(projection_dim=64))
    plain = fit_task("abc", examples, model, "tapnet")
    own, twice = (fit_task("abc", examples, narrow, "tapnet", {"projection_dim": dim}) for dim in (None, 128))
    assert own.temperature == plain.temperature
    assert twice.temperature == 2 * own.temperature
    scaled = fit_task("abc", examples, model, options={"projection_dim": 64})
    assert scaled.temperature == pytest.approx(plain.temperature * 64 / (512 - 3))


def test_temperature_does_not_depend_on_the_order_of_the_examples():
    model, examples = vector_model(64), noise(5, 4)
    shuffled = examples.take(np.random.default_rng(5).permutation(len(examples)))
    first, second = (fit_task("abcde", given, model, "logistic").temperature for given in (examples, shuffled))
    assert first == pytest.approx(second)


def test_calibrated_network_keeps_its_own_temperature_where_classes_have_one_image():
    model = load_network("drawings")
    task = fit_task("abc", drawn(1), model, "centroid")
    assert task.temperature == model.calibration.temperature("centroid", [1, 1, 1])


def test_confidence_is_low_where_classes_cannot_be_told_apart():
    """The accuracy is 0.02; at the temperature of the calibration alone the mean confidence is 0.57."""
    logistic = METHODS["logistic"](PrecomputedFeatures(64)).eval()
    model, queries = replace(vector_model(64), method=logistic, calibration=USUAL), noise(50, 5).features[150:]
    task = fit_task(list(map(str, range(50))), noise(50, 3), model, "logistic")
    assert TaskPredictor(task, model).answer_features(queries)[0].max(axis=1).mean() < 0.1


def test_temperature_is_the_expected_one_after_answers_that_are_all_right_by_far():
    assert corrected_temperature(0.5, 1000 * np.eye(9), np.arange(9)) == pytest.approx(0.5, rel=1e-3)


def test_temperature_after_many_answers_is_theirs():
    generator = np.random.default_rng(0)
    logits = 6 * generator.standard_normal((2000, 5))
    answers = (logits / 2 + generator.gumbel(size=logits.shape)).argmax(axis=1)
    assert corrected_temperature(1.0, logits, answers) == pytest.approx(2, rel=0.1)


def test_alike_classes_need_a_higher_temperature():
    """The cosine of each class with the most alike one is 0.8, 0.8 and 0.6 in place of 0.31 + 0.07 log 3."""
    points = np.array([[1, 0, 0], [0.8, 0.6, 0], [0.6, 0, 0.8]], np.float32)
    expected = ((1 - 2.2 / 3) / (1 - 0.31 - 0.07 * np.log(3))) ** (-4 / 3)
    assert likeness_factor(7 * points, np.arange(3)) == pytest.approx(expected)


@pytest.mark.parametrize("method", ["centroid", "logistic", "protonet"])
@pytest.mark.parametrize("count", [1, 5])
def test_feature_vectors_get_probabilities_that_are_near_their_accuracy(method, count):
    model, (queries, answers), rows = vector_model(DIM), scattered(20, seed=100), []
    for seed in range(8):
        task = fit_task("abcde", examples_of(*scattered(count, seed)), model, method)
        rows.append(TaskPredictor(task, model).answer_features(queries)[0])
    right = np.concatenate([row.argmax(axis=1) == answers for row in rows])
    assert calibration_error(np.concatenate(rows).max(axis=1), right) < 0.2


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
    model = vector_model(DIM)
    task = fit_task("abcde", examples_of(np.ones((5, DIM)), np.arange(5)), model)
    rows, _ = TaskPredictor(task, model).answer_features(np.ones((1, DIM), np.float32))
    assert np.isfinite(rows).all()


def test_leave_one_out_needs_two_examples_of_every_class():
    model, labels = vector_model(64), np.array([0, 0, 1])
    assert leave_one_out(fit_task("ab", examples_of(noise(1, 3).features, labels), model), model) is None


def test_leave_one_out_counts_what_the_other_examples_get_right():
    model, labels = load_network("drawings"), np.repeat(np.arange(3), 4)
    centers = 10 * np.random.default_rng(1).random((3, 512), dtype=np.float32)
    estimate = leave_one_out(fit_task("abc", examples_of(centers[labels], labels), model), model)
    assert (estimate.hits, estimate.total) == (12, 12)


def test_leave_one_out_counts_copies_of_an_image_once():
    model = vector_model(64)
    once, twice = (leave_one_out(fit_task("abcdefgh", noise(8, 4, copies=n), model), model) for n in (1, 2))
    np.testing.assert_array_equal(once.counts, twice.counts)
    assert once.total == 32


def test_leave_one_out_leaves_every_class_with_as_many_examples(monkeypatch):
    seen, adapt, model = [], EmbeddingModel.adapt, vector_model(64)
    fitted = fit_task("abcdef", noise(6, 3), model)
    spy = lambda self, features, labels, *rest: (  # noqa: E731
        seen.append(np.bincount(labels)) or adapt(self, features, labels, *rest)
    )
    monkeypatch.setattr(EmbeddingModel, "adapt", spy)
    leave_one_out(fitted, model)
    assert [counts.tolist() for counts in seen] == [[2] * 6] * 3


def test_leave_one_out_is_close_to_the_accuracy_on_held_out_images():
    generator, way = np.random.default_rng(3), 40
    model, centers = vector_model(DIM), generator.normal(size=(way, DIM))

    def draw(shot):
        labels = np.repeat(np.arange(way), shot)
        return np.float32(centers[labels] + 0.7 * generator.normal(size=(len(labels), DIM))), labels

    fitted, (others, answers) = fit_task(list(map(str, range(way))), examples_of(*draw(2)), model), draw(50)
    halved = fit_task(fitted.classes, fitted.examples.take(np.arange(0, 2 * way, 2)), model)
    rows, _ = TaskPredictor(halved, model).answer_features(others)
    low, high = leave_one_out(fitted, model).interval
    assert low <= (rows.argmax(axis=1) == answers).mean() <= high


def test_leave_one_out_of_many_classes_fits_once_per_round_and_reports_progress():
    model, rounds = vector_model(512), []
    fitted = fit_task([f"{k:03d}" for k in range(196)], noise(196, 3, dim=512), model, "logistic")
    assert leave_one_out(fitted, model, lambda done, total: rounds.append((done, total))).total == 588
    assert rounds == [(1, 3), (2, 3), (3, 3)]

from dataclasses import replace

import numpy as np
import pytest

from tapnet.errors import UserError
from tapnet.inference.examples import Examples
from tapnet.inference.leave_one_out import leave_one_out
from tapnet.inference.networks import load_network, vector_model
from tapnet.inference.task import fit_task, with_examples, without


@pytest.fixture
def model():
    return load_network("drawings")


def examples_of(features, labels):
    count = len(labels)
    return Examples(features, labels, tuple(f"{i:064d}" for i in range(count)), tuple(bytes([i]) for i in range(count)))


@pytest.fixture
def task(model):
    """Four classes with 1, 2, 3 and 4 random examples."""
    features = np.random.default_rng(0).random((10, 512), dtype=np.float32)
    examples = examples_of(features, np.repeat(np.arange(4), [1, 2, 3, 4]))
    return fit_task(["ant", "bee", "cat", "dog"], examples, model, "tapnet")


def test_task_is_fitted_by_the_method_of_its_network(task):
    assert task.method == "tapnet"


def test_task_that_lost_a_class_and_got_it_back_is_as_before(task, model):
    smaller = without(task, lambda label, _: label == 1, model)
    assert smaller.classes == ("ant", "cat", "dog")
    bees = Examples(
        task.examples.features[1:3], np.zeros(2, np.int64), task.examples.hashes[1:3], task.examples.thumbnails[1:3]
    )
    back = with_examples(smaller, ["bee"], bees, model)
    assert back.classes == task.classes
    features = task.examples.features
    np.testing.assert_allclose(back.probabilities(features), task.probabilities(features), atol=1e-5)


def test_task_has_the_projection_dim_of_its_network(task, model):
    narrow = replace(model, method=model.method.with_options(projection_dim=64))
    own = fit_task(task.classes, task.examples, narrow, "tapnet")
    asked = fit_task(task.classes, task.examples, model, options={"projection_dim": 64})
    np.testing.assert_array_equal(own.head.weight, asked.head.weight)


def test_temperature_is_that_of_the_networks_projection_and_scales_to_another(task, model):
    narrow = replace(model, method=model.method.with_options(projection_dim=64))
    dims = None, 128
    own, twice = (fit_task(task.classes, task.examples, narrow, "tapnet", {"projection_dim": dim}) for dim in dims)
    assert own.temperature == task.temperature
    assert twice.temperature == 2 * own.temperature
    scaled = fit_task(task.classes, task.examples, model, options={"projection_dim": 64})
    assert scaled.temperature == pytest.approx(task.temperature * 64 / (512 - 4))


def test_task_keeps_two_classes_at_least(task, model):
    with pytest.raises(UserError, match="at least 2 classes, this would leave 1"):
        without(task, lambda label, _: label > 0, model)


def test_task_leaves_out_an_image_it_has(task, model):
    again = Examples(task.examples.features[:1], np.zeros(1, np.int64), task.examples.hashes[:1], (b"",))
    assert len(with_examples(task, ["ant"], again, model).examples) == 10


def test_task_refuses_an_image_of_two_classes(task, model):
    again = Examples(task.examples.features[:1], np.zeros(1, np.int64), task.examples.hashes[:1], (b"",))
    with pytest.raises(UserError, match="already an example of 'ant'"):
        with_examples(task, ["bee"], again, model)


def test_task_refuses_names_that_differ_in_case(task, model):
    more = Examples(task.examples.features[:1], np.zeros(1, np.int64), ("f" * 64,), (b"",))
    with pytest.raises(UserError, match="'Ant' and 'ant' have the same name in other case"):
        with_examples(task, ["Ant"], more, model)


def test_classes_stay_sorted_when_one_is_added(task, model):
    more = Examples(task.examples.features[:1] + 1, np.zeros(1, np.int64), ("f" * 64,), (b"",))
    larger = with_examples(task, ["bat"], more, model)
    assert larger.classes == ("ant", "bat", "bee", "cat", "dog")
    assert larger.shots() == [1, 1, 2, 3, 4]


def test_task_of_another_network_is_refused(task, model):
    with pytest.raises(UserError, match="fitted with the network 'drawings'"):
        task.check_network(replace(model, name="other", sha256="1" * 64))


def test_leave_one_out_needs_two_examples_of_every_class(task, model):
    assert leave_one_out(task, model) is None
    assert leave_one_out(without(task, lambda label, _: label == 0, model), model) is not None


def test_leave_one_out_counts_what_the_other_examples_get_right(model):
    centers = 10 * np.random.default_rng(1).random((3, 512), dtype=np.float32)
    labels = np.repeat(np.arange(3), 4)
    found = leave_one_out(fit_task("abc", examples_of(centers[labels], labels), model), model)
    assert (found.hits, found.total) == (12, 12)


def noise(classes, shot, dim=64, copies=1):
    """Random vectors, each there several times: nothing can be learned from them."""
    features = np.random.default_rng(2).normal(size=(classes * shot, dim)).astype(np.float32)
    labels = np.repeat(np.arange(classes), shot)
    hashes = tuple(f"{i:064d}" for i in range(len(labels))) * copies
    tiled = np.tile(features, (copies, 1)), np.tile(labels, copies)
    order = np.argsort(tiled[1], kind="stable")
    return Examples(tiled[0][order], tiled[1][order], tuple(hashes[i] for i in order), (b"",) * len(hashes))


def test_leave_one_out_counts_copies_of_an_image_once():
    model = vector_model(64)
    once, twice = (
        leave_one_out(fit_task(list("abcdefgh"), noise(8, 4, copies=copies), model), model) for copies in (1, 2)
    )
    assert once == twice
    assert once.total == 32


def test_leave_one_out_leaves_every_class_with_as_many_examples(monkeypatch):
    from tapnet.inference import adaptation

    seen, adapt, model = [], adaptation.adapt, vector_model(64)
    fitted = fit_task(list("abcdef"), noise(6, 3), model)
    monkeypatch.setattr(
        adaptation, "adapt", lambda few, *rest: seen.append(np.bincount(few.labels)) or adapt(few, *rest)
    )
    leave_one_out(fitted, model)
    assert [counts.tolist() for counts in seen] == [[2] * 6] * 3


def test_leave_one_out_is_close_to_the_accuracy_on_held_out_images():
    generator, model, way, dim = np.random.default_rng(3), vector_model(32), 40, 32
    centers = generator.normal(size=(way, dim))

    def draw(shot):
        labels = np.repeat(np.arange(way), shot)
        return (centers[labels] + 0.7 * generator.normal(size=(len(labels), dim))).astype(np.float32), labels

    fitted, (others, answers) = fit_task([f"{k:02d}" for k in range(way)], examples_of(*draw(2)), model), draw(50)
    one = fitted.examples.kept(np.arange(2 * way) % 2 == 0)
    held_out = (fit_task(fitted.classes, one, model).logits(others).argmax(axis=1) == answers).mean()
    low, high = leave_one_out(fitted, model).interval
    assert low <= held_out <= high


def test_leave_one_out_of_many_classes_fits_once_per_round_and_reports_progress():
    model = vector_model(512)
    fitted = fit_task([f"{k:03d}" for k in range(196)], noise(196, 3, dim=512), model, "logistic")
    rounds = []
    assert leave_one_out(fitted, model, lambda done, total: rounds.append((done, total))).total == 588
    assert rounds == [(1, 3), (2, 3), (3, 3)]


def test_temperature_does_not_depend_on_the_order_of_the_examples():
    model, examples = vector_model(64), noise(5, 4)
    order = np.random.default_rng(5).permutation(len(examples))
    hashes, thumbnails = (tuple(each[i] for i in order) for each in (examples.hashes, examples.thumbnails))
    shuffled = type(examples)(examples.features[order], examples.labels[order], hashes, thumbnails)
    first, second = (fit_task(list("abcde"), each, model, "logistic").temperature for each in (examples, shuffled))
    assert first == pytest.approx(second)

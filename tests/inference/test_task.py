import json
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tapnet.inference.networks import load_network
from tapnet.inference.task import Examples, Settings, fit_task, leave_one_out, with_examples, without
from tapnet.inference.task_file import read_task, write_task


@pytest.fixture
def foundation():
    return load_network("drawings").foundation


@pytest.fixture
def task(foundation):
    """Four classes with 1, 2, 3 and 4 random examples."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), [1, 2, 3, 4])
    features = generator.random((10, 512), dtype=np.float32)
    examples = Examples(features, labels, tuple(f"{i:064d}" for i in range(10)), tuple(bytes([i]) for i in range(10)))
    return fit_task(["ant", "bee", "cat", "dog"], examples, foundation, Settings())


def test_task_comes_back_from_its_file_as_it_was(task, tmp_path):
    write_task(task, tmp_path / "a.task")
    write_task(read_task(tmp_path / "a.task"), tmp_path / "b.task")
    assert (tmp_path / "a.task").read_bytes() == (tmp_path / "b.task").read_bytes()


def test_task_that_lost_a_class_and_got_it_back_is_as_before(task, foundation):
    smaller = without(task, lambda label, _: label == 1, foundation)
    assert smaller.classes == ("ant", "cat", "dog")
    bees = Examples(
        task.examples.features[1:3], np.zeros(2, np.int64), task.examples.hashes[1:3], task.examples.thumbnails[1:3]
    )
    back = with_examples(smaller, ["bee"], bees, foundation)
    order = [back.classes.index(name) for name in task.classes]
    features = task.examples.features
    np.testing.assert_allclose(back.probabilities(features)[:, order], task.probabilities(features), atol=1e-5)


def test_task_has_the_projection_dim_of_its_network(task, foundation):
    own = fit_task(task.classes, task.examples, replace(foundation, projection_dim=64), Settings())
    asked = fit_task(task.classes, task.examples, foundation, Settings(projection_dim=64))
    assert own.settings.projection_dim == 64
    np.testing.assert_array_equal(own.adapted.weight, asked.adapted.weight)


def test_temperature_is_that_of_the_networks_projection_and_scales_to_another(task, foundation):
    narrow = replace(foundation, projection_dim=64)
    own, twice = (fit_task(task.classes, task.examples, narrow, Settings(projection_dim=d)) for d in (None, 128))
    assert own.temperature == task.temperature
    assert twice.temperature == 2 * own.temperature
    scaled = fit_task(task.classes, task.examples, foundation, Settings(projection_dim=64))
    assert scaled.temperature == pytest.approx(task.temperature * 64 / (512 - 4))


def test_task_keeps_two_classes_at_least(task, foundation):
    with pytest.raises(ValueError, match="at least 2 classes, this would leave 1"):
        without(task, lambda label, _: label > 0, foundation)


def test_task_passes_over_a_picture_it_has(task, foundation):
    again = Examples(task.examples.features[:1], np.zeros(1, np.int64), task.examples.hashes[:1], (b"",))
    assert len(with_examples(task, ["ant"], again, foundation).examples) == 10


def test_task_refuses_a_picture_of_two_classes(task, foundation):
    again = Examples(task.examples.features[:1], np.zeros(1, np.int64), task.examples.hashes[:1], (b"",))
    with pytest.raises(ValueError, match="already an example of 'ant'"):
        with_examples(task, ["bee"], again, foundation)


def test_task_refuses_names_that_differ_in_case(task, foundation):
    more = Examples(task.examples.features[:1], np.zeros(1, np.int64), ("f" * 64,), (b"",))
    with pytest.raises(ValueError, match="'ant' and 'Ant' have the same name in other case"):
        with_examples(task, ["Ant"], more, foundation)


def test_task_of_another_network_is_refused(task, foundation):
    other = type(foundation)("other", "1" * 64, foundation.references, foundation.calibration)
    with pytest.raises(ValueError, match="fitted with the network 'drawings'"):
        task.check_network(other)


def test_leave_one_out_needs_two_examples_a_class(task, foundation):
    assert leave_one_out(task, foundation) is None
    assert leave_one_out(without(task, lambda label, _: label == 0, foundation), foundation) is not None


def test_leave_one_out_counts_what_the_other_examples_get_right(foundation):
    generator = np.random.default_rng(1)
    centres = 10 * generator.random((3, 512), dtype=np.float32)
    labels = np.repeat(np.arange(3), 4)
    examples = Examples(centres[labels], labels, tuple(map(str, range(12))), (b"",) * 12)
    assert leave_one_out(fit_task("abc", examples, foundation, Settings()), foundation) == 1


def damaged(path, **tensors):
    """The file with some tensors replaced."""
    from safetensors import safe_open

    with safe_open(path, framework="np") as file:
        metadata = file.metadata()
    save_file({**load_file(path), **tensors}, path, metadata)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("features", lambda a: a[:, :-1].copy(), "features needs float32"),
        ("labels", lambda a: a * 0, "do not match"),
        ("labels", lambda a: a.astype(np.int32), "labels needs int64"),
        ("weight", lambda a: a * np.nan, "not a number"),
        ("bias", lambda a: a + 1, "does not follow from its references"),
        ("errors_basis", lambda a: a * 2, "not orthonormal"),
        ("thumbnail_lengths", lambda a: a[:-1].copy(), "do not match"),
    ],
)
def test_task_file_that_was_changed_is_refused(task, tmp_path, name, change, words):
    path = tmp_path / "a.task"
    write_task(task, path)
    damaged(path, **{name: change(load_file(path)[name])})
    with pytest.raises(ValueError, match=words):
        read_task(path)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x08\0\0\0\0\0\0\0{}      "])
def test_task_file_that_is_none_is_refused(tmp_path, content):
    (tmp_path / "a.task").write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged|not a task"):
        read_task(tmp_path / "a.task")


def test_task_file_tells_its_network(task, tmp_path):
    write_task(task, tmp_path / "a.task")
    head = (tmp_path / "a.task").read_bytes()[8:].split(b"}}")[0]
    assert json.dumps(load_network("drawings").sha256)[1:-1].encode() in head

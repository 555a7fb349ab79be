"""A task is a value: changed by functions, and the same after it was written and read."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tapnet.checkpoint import TASK, content_digest
from tapnet.errors import UserError
from tapnet.inference import fit_task, load_network, read_task, remove, write_task
from tapnet.inference.fitting import with_examples
from tapnet.inference.predictor import TaskPredictor
from tapnet.inference.task import Examples


@pytest.fixture
def model():
    return load_network("drawings")


@pytest.fixture
def task(model):
    """Four classes with 1, 2, 3 and 4 random examples."""
    features = np.random.default_rng(0).random((10, 512), dtype=np.float32)
    labels = np.repeat(np.arange(4), [1, 2, 3, 4])
    hashes, thumbnails = tuple(f"{i:064d}" for i in range(10)), tuple(bytes([i]) for i in range(10))
    return fit_task(["ant", "bee", "cat", "dog"], Examples(features, labels, hashes, thumbnails), model, "tapnet")


def one_more(task, sha256=None):
    """The first example of the task once more, or another image with its features."""
    features = task.examples.features[:1]
    return Examples(features, np.zeros(1, np.int64), (sha256 or task.examples.hashes[0],), (b"",))


def test_task_has_the_projection_dim_of_its_network(task, model):
    narrow = replace(model, method=model.method.with_options(projection_dim=64))
    own = TaskPredictor(fit_task(task.classes, task.examples, narrow, "tapnet"), narrow)
    asked = TaskPredictor(fit_task(task.classes, task.examples, model, options={"projection_dim": 64}), model)
    np.testing.assert_array_equal(own.head.weight, asked.head.weight)


def test_task_refuses_a_projection_without_room_for_it(task, model):
    with pytest.raises(UserError, match="509"):
        fit_task(task.classes, task.examples, model, options={"projection_dim": 509})


def test_task_keeps_two_classes_at_least(task):
    with pytest.raises(UserError, match="at least 2 classes, this would leave 1"):
        remove(task, ["ant", "bee", "cat"])


def test_task_leaves_out_an_image_it_has_and_refuses_one_of_another_class(task, model):
    assert len(with_examples(task, ["ant"], one_more(task), model).examples) == 10
    with pytest.raises(UserError, match="already an example of 'ant'"):
        with_examples(task, ["bee"], one_more(task), model)


def test_task_refuses_names_that_differ_in_case(task, model):
    with pytest.raises(UserError, match="'Ant' and 'ant' have the same name in other case"):
        with_examples(task, ["Ant"], one_more(task, "f" * 64), model)


def test_classes_stay_sorted_when_one_is_added(task, model):
    larger = with_examples(task, ["bat"], one_more(task, "f" * 64), model)
    assert larger.classes == ("ant", "bat", "bee", "cat", "dog")
    assert larger.shots() == [1, 1, 2, 3, 4]


def test_task_of_another_network_is_refused(task, model):
    with pytest.raises(UserError, match="fitted with the network 'drawings'"):
        TaskPredictor(task, replace(model, name="other", sha256="1" * 64))


def test_task_with_features_of_another_shape_is_refused(task, model):
    cut = replace(task, examples=replace(task.examples, features=task.examples.features[:, :-1]))
    with pytest.raises(UserError, match=r"features of shape \(511,\), but its network has \(512,\)"):
        TaskPredictor(cut, model)


@pytest.fixture
def path(task, tmp_path):
    write_task(task, tmp_path / "a.task")
    return tmp_path / "a.task"


def header_of(path):
    with safe_open(path, framework="np") as file:
        return json.loads(file.metadata()[TASK])


def rewrite(path, header=None, **tensors):
    """Replace parts of a task file, with a digest that matches."""
    values, changed = header_of(path) | (header or {}), {**load_file(path), **tensors}
    values["digest"] = content_digest(values, {name: torch.from_numpy(array) for name, array in changed.items()})
    save_file(changed, path, {TASK: json.dumps(values)})


def test_task_comes_back_from_its_file_as_it_was(path, tmp_path):
    write_task(read_task(path), tmp_path / "b.task")
    assert path.read_bytes() == (tmp_path / "b.task").read_bytes()


def test_task_file_names_its_network_and_keeps_nothing_that_follows_from_its_examples(path):
    assert header_of(path)["network_sha256"] == load_network("drawings").sha256
    assert set(load_file(path)) == {"features", "labels", "thumbnails", "thumbnail_lengths"}


def test_every_flipped_bit_of_a_tensor_is_noticed(path):
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    for position in np.random.default_rng(0).integers(start, len(content), 60):
        content[position] ^= 1 << int(position % 8)
        path.write_bytes(content)
        with pytest.raises(UserError, match="damaged"):
            read_task(path)
        content[position] ^= 1 << int(position % 8)


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("features", lambda a: a[:-1].copy(), "features need 10 rows of finite"),
        ("features", lambda a: a * np.nan, "features need 10 rows of finite"),
        ("labels", lambda a: a * 0, "do not match"),
        ("labels", lambda a: a.astype(np.int32), "labels need int64"),
        ("thumbnail_lengths", lambda a: a[:-1].copy(), "do not match"),
    ],
)
def test_task_file_whose_parts_do_not_fit_is_refused(path, name, change, words):
    rewrite(path, **{name: change(load_file(path)[name])})
    with pytest.raises(UserError, match=words):
        read_task(path)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"format": 2}, "it has format 2, this version reads 3"),
        ({"precision": "bf8"}, "its precision is 'bf8', expected float32 or bf16"),
        ({"temperature": float("inf")}, "its method, options or temperature are not valid"),
        ({"method": ["tapnet"]}, "unhashable"),
        ({"label_kind": "int"}, "invalid literal for int"),
        ({"classes": ["ant", "Ant", "cat", "dog"]}, "the same name in other case"),
        ({"network": ""}, "its names are not text"),
    ],
)
def test_task_file_with_a_strange_header_is_refused(path, header, words):
    rewrite(path, header)
    with pytest.raises(UserError, match=words):
        read_task(path)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x08\0\0\0\0\0\0\0{}      "])
def test_file_that_is_no_task_is_refused(tmp_path, content):
    (tmp_path / "a.task").write_bytes(content)
    with pytest.raises(UserError, match=r"damaged|not a task"):
        read_task(tmp_path / "a.task")

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from tapnet.checkpoint import TASK, content_digest
from tapnet.errors import UserError
from tapnet.functional import linear_head, projection_errors, select_references
from tapnet.inference.examples import Examples
from tapnet.inference.networks import load_network
from tapnet.inference.task import fit_task
from tapnet.inference.task_file import read_task, with_network, write_task


@pytest.fixture
def examples():
    """Ten random examples of four classes, 1, 2, 3 and 4 of each."""
    features = np.random.default_rng(0).random((10, 512), dtype=np.float32)
    labels = np.repeat(np.arange(4), [1, 2, 3, 4])
    return Examples(features, labels, tuple(f"{i:064d}" for i in range(10)), tuple(bytes([i]) for i in range(10)))


@pytest.fixture
def task(examples):
    return fit_task(["ant", "bee", "cat", "dog"], examples, load_network("drawings"), "tapnet")


@pytest.fixture
def path(task, tmp_path):
    write_task(task, tmp_path / "a.task")
    return tmp_path / "a.task"


def rewrite(path, digest, header=None, **tensors):
    """Replace parts of a task file, with a digest that matches or not."""
    with safe_open(path, framework="np") as file:
        values = json.loads(file.metadata()[TASK]) | (header or {})
    changed = {**load_file(path), **tensors}
    if digest:
        values["digest"] = content_digest(values, {name: torch.from_numpy(array) for name, array in changed.items()})
    save_file(changed, path, {TASK: json.dumps(values)})


def test_task_comes_back_from_its_file_as_it_was(path, tmp_path):
    write_task(read_task(path), tmp_path / "b.task")
    assert path.read_bytes() == (tmp_path / "b.task").read_bytes()


def test_task_file_names_its_network(path):
    with safe_open(path, framework="np") as file:
        assert json.loads(file.metadata()[TASK])["network_sha256"] == load_network("drawings").sha256


def test_every_flipped_bit_of_a_tensor_is_noticed(path):
    content = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(content[:8], "little")
    for position in np.random.default_rng(0).integers(start, len(content), 60):
        content[position] ^= 1 << int(position % 8)
        path.write_bytes(content)
        with pytest.raises(UserError, match="damaged"):
            read_task(path)
        content[position] ^= 1 << int(position % 8)


def test_weights_that_do_not_follow_from_the_examples_are_noticed_whatever_the_digest(path):
    rewrite(path, digest=True, weight=load_file(path)["weight"][::-1].copy())
    with pytest.raises(UserError, match="does not follow from its examples"):
        with_network(read_task(path), load_network("drawings"))


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("features", lambda a: a[:, :-1].copy(), "weight needs float32"),
        ("features", lambda a: a * np.nan, "features need 10 rows of finite"),
        ("labels", lambda a: a * 0, "do not match"),
        ("labels", lambda a: a.astype(np.int32), "labels need int64"),
        ("weight", lambda a: a * np.nan, "not a number"),
        ("thumbnail_lengths", lambda a: a[:-1].copy(), "do not match"),
    ],
)
def test_task_file_whose_parts_do_not_fit_is_refused(path, name, change, words):
    rewrite(path, digest=True, **{name: change(load_file(path)[name])})
    with pytest.raises(UserError, match=words):
        read_task(path)


def test_task_file_of_a_later_format_is_refused(path):
    rewrite(path, digest=True, header={"format": 3})
    with pytest.raises(UserError, match="format 3, this version reads 1 and 2"):
        read_task(path)


@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x08\0\0\0\0\0\0\0{}      "])
def test_file_that_is_no_task_is_refused(tmp_path, content):
    (tmp_path / "a.task").write_bytes(content)
    with pytest.raises(UserError, match=r"damaged|not a task"):
        read_task(tmp_path / "a.task")


@pytest.fixture
def format_1(examples, tmp_path):
    """A task file as earlier versions wrote it: TapNet's parts beside the head, and no digest."""
    network, labels = load_network("drawings"), examples.labels
    references = network.method.references.detach()
    prototypes = torch.stack([torch.from_numpy(examples.features[labels == k].mean(axis=0)) for k in range(4)])
    chosen = select_references(prototypes, references, "optimal")
    errors = projection_errors(references[chosen], prototypes)[chosen.argsort()]
    weight, bias = linear_head(references[chosen], errors, None)
    header = {
        "classes": ["ant", "bee", "cat", "dog"],
        "hashes": examples.hashes,
        "temperature": network.calibration.temperature("tapnet", [1, 2, 3, 4]),
        "unit_length": False,
        "head": "tapnet",
        "selection": "optimal",
        "projection_dim": None,
        "network": "drawings",
        "network_sha256": network.sha256,
        "version": "0.9.0",
        "format": 1,
    }
    tensors = {
        "features": examples.features,
        "labels": labels,
        "thumbnails": np.frombuffer(b"".join(examples.thumbnails), np.uint8),
        "thumbnail_lengths": np.ones(10, np.int64),
        "weight": weight.numpy(),
        "bias": bias.numpy(),
        "chosen": chosen.numpy(),
        "references": references[chosen].numpy(),
        "errors_basis": torch.linalg.qr(errors.mT).Q.mT.contiguous().numpy(),
        "reference_bias": np.zeros(4, np.float32),
    }
    save_file(tensors, tmp_path / "old.task", {TASK: json.dumps(header, sort_keys=True)})
    return tmp_path / "old.task"


def test_task_file_of_format_1_predicts_as_one_of_today(format_1, task):
    old = with_network(read_task(format_1), load_network("drawings"))
    features = np.random.default_rng(1).random((20, 512), dtype=np.float32)
    np.testing.assert_allclose(old.probabilities(features), task.probabilities(features), atol=1e-5)
    assert old.classes == task.classes

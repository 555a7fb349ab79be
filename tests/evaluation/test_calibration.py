from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.special import softmax

from tapnet.backbones import PrecomputedFeatures
from tapnet.checkpoint import load, read_checkpoint
from tapnet.data import load_dataset
from tapnet.data.episodes import EpisodeSpec
from tapnet.evaluation.calibration import (
    GRID,
    QUERY,
    SEED,
    Calibration,
    calibrate,
    calibrate_checkpoint,
    calibration_error,
    fit_temperature,
    logits_and_answers,
)
from tapnet.evaluation.embedding import embed
from tapnet.methods import PARAMETER_FREE, PrototypicalNetwork, TapNet

TABLE = {"tapnet": {"ways": [2, 8], "shots": [1, 4], "temperatures": [[1.0, 4.0], [4.0, 16.0]]}}


def test_temperature_of_the_right_scale_is_found():
    generator = np.random.default_rng(0)
    scores = generator.normal(size=(20_000, 4)) * 2
    answers = np.array([generator.choice(4, p=p) for p in softmax(scores / 3, axis=1)])
    assert fit_temperature(scores, answers) == pytest.approx(3, rel=0.05)


def test_answers_that_are_all_right_make_nobody_certain():
    answers = np.tile(np.arange(2), 100)
    scores = np.where(np.arange(2) == answers[:, None], 5.0, 0.0)
    assert softmax(scores / fit_temperature(scores, answers), axis=1).max() == pytest.approx(1 - 1 / 202, abs=1e-4)


def test_temperature_lies_between_those_of_its_cells_and_is_one_without_a_table():
    assert Calibration(TABLE).temperature("tapnet", [2, 2, 2, 2]) == pytest.approx(4)
    assert Calibration(TABLE).temperature("tapnet", [100] * 50) == pytest.approx(16)
    assert Calibration().temperature("tapnet", [1, 1]) == 1


def test_calibration_lowers_the_error_of_its_own_classes():
    """With the bundled temperatures the mean confidence on drawings is closer to the accuracy than without."""
    checkpoint, images = read_checkpoint("drawings"), load_dataset("quickdraw", "val")
    method, labels = checkpoint.method(), images.labels[::9]
    features = embed(method.backbone, replace(images, rows=images.rows[::9], row_labels=labels))
    tables = calibrate(method, (features, labels))
    stored = checkpoint.header.calibration["tapnet"]["temperatures"]
    assert np.log(np.array(tables["tapnet"]["temperatures"])[:3, :2] / np.array(stored)[:3, :2]).std() < 0.5


def test_calibration_is_that_of_the_projection_asked_for():
    method = TapNet(PrecomputedFeatures(32), num_references=4, projection_dim=8).eval()
    features, labels = torch.rand(24, 32), np.repeat(np.arange(3), 8)
    ordered = method.with_options(**method.order_free_options)
    expected = fit_temperature(*logits_and_answers(ordered, features, labels, EpisodeSpec(2, 1, QUERY, GRID[2], SEED)))
    assert calibrate(method, (features, labels))["tapnet"]["temperatures"][0][0] == expected


def test_calibration_of_a_method_without_parameters_keeps_its_options():
    """A network trained as a Prototypical Network has a temperature of its own, with which it is calibrated."""
    labels = np.repeat(np.arange(6), 20)
    features = torch.randn(120, 16) + 2 * torch.eye(6, 16)[labels]
    plain, warm = (
        calibrate(PrototypicalNetwork(PrecomputedFeatures(16), temperature=value), (features, labels))["protonet"]
        for value in (1.0, 4.0)
    )
    assert np.array(warm["temperatures"]) * 4 == pytest.approx(np.array(plain["temperatures"]), rel=0.01)


def test_checkpoint_keeps_its_temperatures(tmp_path):
    checkpoint = read_checkpoint("drawings")
    checkpoint.write(tmp_path / "a.safetensors")
    images = load_dataset("quickdraw", "val")
    few = replace(images, rows=images.rows[:900], row_labels=images.row_labels[:900])
    halves = read_checkpoint(tmp_path / "a.safetensors")
    assert next(iter(halves.weights.values())).dtype == torch.float16
    calibrate_checkpoint(tmp_path / "a.safetensors", few)
    assert set(read_checkpoint(tmp_path / "a.safetensors").header.calibration) == {"tapnet", *PARAMETER_FREE}
    assert load(tmp_path / "a.safetensors").references.dtype == torch.float32


def test_calibration_error_is_how_far_confidence_and_accuracy_lie_apart():
    generator = np.random.default_rng(2)
    sure = generator.uniform(0.2, 1, 50_000)
    assert calibration_error(sure, generator.random(50_000) < sure) < 0.02
    assert calibration_error(np.ones(10), np.arange(10) < 7) == pytest.approx(0.3)

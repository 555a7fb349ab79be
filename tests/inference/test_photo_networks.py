"""The bundled networks for photographs, and the precision in which a task embeds images."""

from dataclasses import replace

import numpy as np
import pytest

from tapnet.checkpoint import read_checkpoint
from tapnet.errors import UserError
from tapnet.inference import fit, load_network, read_task, write_task
from tapnet.inference.task_predictor import TaskPredictor


def photographs(seed, count=2):
    generator = np.random.default_rng(seed)
    return [generator.integers(0, 256, (48, 40, 3), dtype=np.uint8) for _ in range(count)]


@pytest.fixture(scope="module")
def task():
    return fit({"a": photographs(0), "b": photographs(1)}, "photos-fast")


@pytest.mark.parametrize(("name", "side"), [("photos", 260), ("photos-fast", 224)])
def test_network_for_photographs_takes_square_crops_and_is_fitted_by_logistic_regression(name, side):
    network = load_network(name)
    assert network.image_preprocessing.shape == (side, side, 3)
    assert network.image_preprocessing.fit == "crop"
    assert (network.default_method, network.method.feature_shape) == ("logistic", (2560,))


@pytest.mark.parametrize("name", ["photos", "photos-fast"])
def test_network_for_photographs_is_calibrated_for_its_methods(name):
    assert set(read_checkpoint(name).header.calibration) == {"logistic", "centroid", "protonet"}


def test_earlier_network_for_photographs_still_embeds_160_pixels_in_float32():
    network = load_network("efficientnet-lite0")
    assert network.image_preprocessing.shape == (160, 160, 3)
    assert (network.default_method, network.precision) == ("tapnet", "float32")


def test_task_embeds_in_the_precision_of_its_examples_wherever_it_is_opened(task, tmp_path):
    for precision in ("float32", "bf16"):
        write_task(replace(task, precision=precision), tmp_path / "a.task")
        assert TaskPredictor.open(read_task(tmp_path / "a.task")).network.precision == precision


def test_task_without_a_recorded_precision_is_of_float32(drawing_task):
    from tapnet.inference.task_file import read_header

    assert "precision" not in read_header(drawing_task)
    assert read_task(drawing_task).precision == "float32"


def test_task_of_an_unknown_precision_is_refused(task, tmp_path):
    write_task(replace(task, precision="bf8"), tmp_path / "a.task")
    with pytest.raises(UserError, match="its precision is 'bf8', expected float32 or bf16"):
        read_task(tmp_path / "a.task")


def test_both_precisions_give_nearly_the_same_features():
    network, pixels = load_network("photos-fast"), [np.zeros((224, 224, 3), np.uint8)]
    pixels[0][60:160, 60:160] = (200, 80, 30)
    half, full = (network.embedding_as(each).embed(pixels)[0] for each in ("bf16", "float32"))
    assert half @ full / np.linalg.norm(half) / np.linalg.norm(full) > 0.99

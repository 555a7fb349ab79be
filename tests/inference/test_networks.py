import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tapnet.checkpoint import Checkpoint, Header, backbone_digest, read_checkpoint
from tapnet.errors import UserError
from tapnet.evaluation.embedding import feature_key
from tapnet.inference import fit, fit_task, load_network, read_task, write_task
from tapnet.inference.predictor import TaskPredictor
from tapnet.inference.task import Examples
from tapnet.recipe import recipe_from


def test_checkpoint_is_loaded_once_until_it_is_rewritten_at_its_path(tmp_path):
    path, checkpoint = tmp_path / "a.safetensors", read_checkpoint("drawings")
    checkpoint.write(path)
    first = load_network(str(path))
    assert load_network(str(path)) is first
    weights = dict(checkpoint.weights)
    weights["references"] = -weights["references"]
    replace(checkpoint, weights=weights).write(path)
    second = load_network(str(path))
    assert first.sha256 != second.sha256
    torch.testing.assert_close(second.method.references, -first.method.references)


def test_digest_is_that_of_the_bytes_that_were_loaded(tmp_path, monkeypatch):
    """A checkpoint that is replaced while it is loaded is either the old one or the new one, never half of both."""
    path, checkpoint = tmp_path / "a.safetensors", read_checkpoint("drawings")
    checkpoint.write(path)
    read, reads = Path.read_bytes, []
    monkeypatch.setattr(Path, "read_bytes", lambda self: reads.append(self) or read(self))
    load_network(str(path))
    assert reads.count(path) == 1


@pytest.fixture
def vit(tmp_path):
    """The folder of a tiny vision transformer."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **sizes))
    model.save_pretrained(tmp_path / "vit")
    normalize(tmp_path / "vit", 0.5)
    return tmp_path / "vit"


def normalize(folder, mean):
    values = {"image_mean": [mean] * 3, "image_std": [0.5] * 3, "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(values))


def change_mean(folder):
    normalize(folder, 0.25)


def change_configuration(folder):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"layer_norm_eps": 0.1, "hidden_act": "relu"}))


@pytest.mark.parametrize("change", [change_mean, change_configuration])
def test_digest_of_a_pretrained_model_changes_with_its_normalization_and_configuration(change, vit):
    before = load_network(f"hf:{vit}")
    change(vit)
    after = load_network(f"hf:{vit}")
    assert before.sha256 != after.sha256


def test_changed_pretrained_model_is_refused_by_a_task_and_has_features_of_its_own(vit, blobs):
    model = load_network(f"hf:{vit}")
    examples = Examples(np.eye(16, dtype=np.float32)[:4], np.array([0, 0, 1, 1]), tuple("abcd"), (b"",) * 4)
    task = fit_task(["robin", "wren"], examples, model)
    change_mean(vit)
    changed = load_network(f"hf:{vit}")
    with pytest.raises(UserError, match="give the first, or fit again"):
        task.check_network(changed)
    old, new = (feature_key(network.method.backbone, blobs, "float32") for network in (model, changed))
    assert old != new


@pytest.fixture
def recipe(vit):
    """A recipe over the tiny vision transformer, frozen."""
    values = read_checkpoint("photos-fast").header.recipe.as_dict()
    values["backbone"] = {"name": "hf", "options": {"model": str(vit)}}
    values["method"] = {"name": "tapnet", "options": {"num_references": 5}}
    values["training"]["way"] = values["validation"]["way"] = 5
    return recipe_from(values, "test")


def test_checkpoint_over_a_frozen_model_refuses_one_that_was_changed(vit, recipe):
    backbone = load_network(f"hf:{vit}").method.backbone
    header = Header(recipe, (3, 32, 32), episode=0, backbone_digest=backbone_digest(backbone))
    weights = recipe.build_method(backbone).state_dict()
    checkpoint = Checkpoint(header, {name: weights[name] for name in weights if "backbone." not in name})
    checkpoint.method()
    change_mean(vit)
    with pytest.raises(UserError, match="trained over a pretrained backbone with the digest"):
        checkpoint.method()


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
    assert set(network.calibration.tables) == {"logistic", "centroid", "protonet"}


def test_task_embeds_in_the_precision_of_its_examples_wherever_it_is_opened(task, tmp_path):
    for precision in ("float32", "bf16"):
        write_task(replace(task, precision=precision), tmp_path / "a.task")
        assert TaskPredictor.open(read_task(tmp_path / "a.task")).network.precision == precision


def test_both_precisions_give_nearly_the_same_features():
    network, pixels = load_network("photos-fast"), [np.zeros((224, 224, 3), np.uint8)]
    pixels[0][60:160, 60:160] = (200, 80, 30)
    half, full = (network.embedding_as(precision).embed(pixels)[0] for precision in ("bf16", "float32"))
    assert half @ full / np.linalg.norm(half) / np.linalg.norm(full) > 0.99

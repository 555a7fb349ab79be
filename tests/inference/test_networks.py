import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from tapnet.checkpoint import Checkpoint, Header, backbone_digest, read_checkpoint
from tapnet.errors import UserError
from tapnet.inference.examples import Examples
from tapnet.inference.networks import load_network
from tapnet.inference.task import fit_task


def test_checkpoint_rewritten_at_its_path_is_another_network(tmp_path):
    path, checkpoint = tmp_path / "a.safetensors", read_checkpoint("drawings")
    checkpoint.write(path)
    first = load_network(str(path))
    weights = dict(checkpoint.weights)
    weights["references"] = -weights["references"]
    replace(checkpoint, weights=weights).write(path)
    second = load_network(str(path))
    assert first.sha256 != second.sha256
    torch.testing.assert_close(second.method.references, -first.method.references)


def test_network_is_loaded_once_for_the_same_content():
    assert load_network("drawings") is load_network("drawings")


def test_digest_is_that_of_the_bytes_that_were_loaded(tmp_path, monkeypatch):
    """A checkpoint that is replaced while it is loaded is either the old one or the new one, never half of both."""
    from pathlib import Path

    path, checkpoint = tmp_path / "a.safetensors", read_checkpoint("drawings")
    checkpoint.write(path)
    read, reads = Path.read_bytes, []
    monkeypatch.setattr(Path, "read_bytes", lambda self: reads.append(self) or read(self))
    load_network(str(path))
    assert reads.count(path) == 1


def test_network_that_is_missing_is_an_error_of_the_user():
    with pytest.raises(UserError, match="There is no checkpoint nowhere") as refusal:
        load_network("nowhere")
    assert refusal.value.parameter == "network"


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
    assert before.earlier_sha256 == after.earlier_sha256  # the weights are the same


@pytest.mark.parametrize("change", [change_mean, change_configuration])
def test_task_refuses_a_pretrained_model_that_was_changed(change, vit):
    model = load_network(f"hf:{vit}")
    examples = Examples(np.eye(16, dtype=np.float32)[:4], np.array([0, 0, 1, 1]), tuple("abcd"), (b"",) * 4)
    task = fit_task(["robin", "wren"], examples, model)
    change(vit)
    with pytest.raises(UserError, match="give the first, or fit again"):
        task.check_network(load_network(f"hf:{vit}"))


def test_task_of_an_earlier_version_knows_its_pretrained_model_by_the_weights(vit):
    model = load_network(f"hf:{vit}")
    examples = Examples(np.eye(16, dtype=np.float32)[:4], np.array([0, 0, 1, 1]), tuple("abcd"), (b"",) * 4)
    replace(fit_task(["robin", "wren"], examples, model), network_sha256=model.earlier_sha256).check_network(model)


@pytest.mark.parametrize("change", [change_mean, change_configuration])
def test_features_are_cached_under_another_name_when_the_model_changes(change, vit, blobs):
    from tapnet.evaluation.embedding import feature_key

    before = feature_key(load_network(f"hf:{vit}").method.backbone, blobs, "float32")
    change(vit)
    assert feature_key(load_network(f"hf:{vit}").method.backbone, blobs, "float32") != before


@pytest.mark.parametrize("change", [change_mean, change_configuration])
def test_checkpoint_over_a_frozen_model_refuses_one_that_was_changed(change, vit):
    from tapnet.recipe import recipe_from

    values = read_checkpoint("efficientnet-lite0").header.recipe.as_dict()
    values["backbone"] = {"name": "hf", "options": {"model": str(vit)}}
    values["method"]["options"]["num_references"] = values["training"]["way"] = values["validation"]["way"] = 5
    recipe = recipe_from(values, "test")
    backbone = load_network(f"hf:{vit}").method.backbone
    header = Header(recipe, (3, 32, 32), episode=0, backbone_digest=backbone_digest(backbone))
    own = {
        name: tensor for name, tensor in recipe.build_method(backbone).state_dict().items() if "backbone." not in name
    }
    checkpoint = Checkpoint(header, own)
    checkpoint.method()
    change(vit)
    with pytest.raises(UserError, match="trained over a pretrained backbone with the digest"):
        checkpoint.method()


def test_frozen_run_records_the_digest_of_its_backbone(vit):
    from types import SimpleNamespace

    from tapnet.recipe import recipe_from
    from tapnet.training.sources import FeatureEpisodes

    values = read_checkpoint("efficientnet-lite0").header.recipe.as_dict()
    values["backbone"] = {"name": "hf", "options": {"model": str(vit)}}
    values["method"]["options"]["num_references"] = values["training"]["way"] = values["validation"]["way"] = 5
    images = SimpleNamespace(image_shape=(3, 32, 32))
    source = FeatureEpisodes(recipe_from(values, "test"), images, images, torch.device("cpu"), "float32")
    assert source.backbone_digest == load_network(f"hf:{vit}").sha256

import numpy as np
import pytest
import torch

from tapnet.checkpoint import BEST, read_checkpoint
from tapnet.recipe import recipe_from
from tapnet.tasks.networks import load_network
from tapnet.training.folder import read_curve
from tapnet.training.frozen import train_frozen


@pytest.fixture
def photo_sets(monkeypatch, tmp_path):
    """Train and validation classes of flat colours with noise, 32×32, in place of a dataset."""
    from tapnet.datasets import ImageSet

    generator = np.random.default_rng(0)

    def load(name, split, *_, **__):
        labels = np.repeat(np.arange(6), 6)
        colours = generator.integers(0, 256, (6, 1, 1, 3))[labels]
        pixels = (colours + generator.integers(-30, 31, (36, 32, 32, 3))).clip(0, 255).astype(np.uint8)
        return ImageSet(name, split, pixels, np.arange(36), labels, tuple("abcdef"), fingerprint="0" * 64)

    monkeypatch.setattr("tapnet.training.frozen.load_dataset", load)
    monkeypatch.setenv("TAPNET_CACHE", str(tmp_path / "cache"))


def small_recipe(**method):
    return recipe_from(
        {
            "name": "small",
            "data": {"name": "photos"},
            "backbone": {"name": "efficientnet-lite0"},
            "method": {"name": "tapnet", "options": {"ways": 6}} | method,
            "training": {"way": 6, "shot": 1, "query": 2, "episodes": 20, "frozen_backbone": True},
            "validation": {"way": 3, "shot": 1, "query": 2, "episodes": 20, "every": 10},
        },
        "the test",
    )


@pytest.mark.usefixtures("photo_sets")
def test_frozen_training_leaves_references_alone_in_its_checkpoint(tmp_path):
    best = train_frozen(small_recipe(), tmp_path, "cpu")
    assert set(read_checkpoint(best).weights) == {"references"}
    assert [point.episode for point in read_curve(tmp_path)] == [10, 20]


@pytest.mark.usefixtures("photo_sets")
def test_frozen_training_learns_and_its_checkpoint_works(tmp_path):
    losses = []
    train_frozen(small_recipe(), tmp_path, "cpu", lambda step: losses.append(step.loss))
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
    method = read_checkpoint(tmp_path).method()
    assert method.embed(torch.rand(2, 3, 32, 32)).shape == (2, 1280)


@pytest.mark.usefixtures("photo_sets")
def test_frozen_training_stores_temperatures(tmp_path):
    tables = read_checkpoint(train_frozen(small_recipe(), tmp_path, "cpu")).header.calibration
    assert set(tables) == {"tapnet", "centroid", "logistic"}


@pytest.mark.usefixtures("photo_sets")
def test_frozen_training_refuses_a_method_with_nothing_to_learn(tmp_path):
    with pytest.raises(ValueError, match="nothing to learn besides its backbone"):
        train_frozen(small_recipe(name="protonet", options={}), tmp_path, "cpu")


@pytest.mark.usefixtures("photo_sets")
def test_frozen_training_does_not_write_over_a_run(tmp_path):
    (tmp_path / BEST).write_bytes(b"a run")
    with pytest.raises(ValueError, match="already holds a run"):
        train_frozen(small_recipe(), tmp_path, "cpu")


@pytest.mark.usefixtures("photo_sets")
def test_frozen_training_serves_a_hugging_face_model(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **sizes)).save_pretrained(
        tmp_path / "vit"
    )
    values = small_recipe().as_dict() | {"backbone": {"name": "hf", "options": {"model": str(tmp_path / "vit")}}}
    train_frozen(recipe_from(values, "the test"), tmp_path / "run", "cpu")
    network = load_network(str(tmp_path / "run"))
    assert network.foundation.references.shape == (6, 16)
    assert network.preprocessing.geometry.fit == "crop"

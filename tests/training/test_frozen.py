"""Runs that train all but a frozen backbone, on features computed once."""

import numpy as np
import pytest
import torch
from small_runs import interrupt_after, new_run, same_files

from tapnet.checkpoint import read_checkpoint
from tapnet.data import ImageSet
from tapnet.errors import Diverged
from tapnet.inference.networks import load_network
from tapnet.paths import BEST, LAST
from tapnet.recipe import recipe_from
from tapnet.training import Interrupted, find_runs, read_curve, train
from tapnet.training.loader import episode_loss
from tapnet.training.run_folder import CURVE, SNAPSHOTS

pytestmark = pytest.mark.usefixtures("short_evaluation")


@pytest.fixture(autouse=True)
def photo_sets(monkeypatch, tmp_path):
    """Train and validation classes of similar colors with noise, 32×32, in place of a dataset."""

    def load(name, split, *_, **__):
        generator = np.random.default_rng(len(split))
        labels = np.repeat(np.arange(6), 6)
        colors = generator.integers(110, 146, (6, 1, 1, 3))[labels]
        pixels = (colors + generator.integers(-60, 61, (36, 32, 32, 3))).clip(0, 255).astype(np.uint8)
        names, fingerprint = tuple(split + str(k) for k in range(6)), split.ljust(64, "0")
        return ImageSet(name, split, pixels, np.arange(36), labels, names, fingerprint=fingerprint)

    monkeypatch.setattr("tapnet.recipe.load_dataset", load)
    monkeypatch.setenv("TAPNET_CACHE", str(tmp_path / "cache"))


def recipe(method=None, backbone=None, **training):
    return recipe_from(
        {
            "name": "small",
            "data": {"name": "photos"},
            "backbone": backbone or {"name": "efficientnet-lite0"},
            "method": method or {"name": "tapnet", "options": {"num_references": 6}},
            "training": {"way": 6, "shot": 1, "query": 2, "episodes": 20, "frozen_backbone": True} | training,
            "validation": {"way": 3, "shot": 1, "query": 2, "episodes": 20, "every": 10},
        },
        "the test",
    )


def test_frozen_run_learns_and_its_checkpoints_leave_out_the_backbone(tmp_path):
    losses = []
    watch = lambda step: losses.append(step.loss)  # noqa: E731
    train(recipe(episodes=60, learning_rate=3e-3), tmp_path / "run", "cpu", watch=watch)
    assert np.mean(losses[-20:]) < 0.95 * np.mean(losses[1:21])
    for name in (BEST, LAST):
        assert set(read_checkpoint(tmp_path / "run" / name).weights) == {"references"}
    assert [point.episode for point in read_curve(tmp_path / "run")] == list(range(0, 61, 10))
    assert [(run.state, run.episode) for run in find_runs(tmp_path)] == [("finished", 60)]
    best = read_checkpoint(tmp_path / "run")
    assert best.method().embed(torch.rand(2, 3, 32, 32)).shape == (2, 1280)
    assert set(best.header.calibration) == {"tapnet", "centroid", "logistic", "protonet"}


def test_frozen_run_that_was_interrupted_resumes_bit_for_bit(tmp_path):
    small = recipe(meta_batch=2, weight_decay=1e-3)
    train(small, tmp_path / "whole", "cpu", "float32")
    with pytest.raises(Interrupted, match="after episode 14"):
        train(small, tmp_path / "parts", "cpu", "float32", watch=interrupt_after(14))
    train(small, tmp_path / "parts", "cpu", "float32", resume=True)
    assert same_files(tmp_path / "whole", tmp_path / "parts", BEST, LAST, CURVE, SNAPSHOTS)


def test_frozen_run_that_diverged_keeps_its_episode(tmp_path):
    run = new_run(recipe(), tmp_path)
    run.compute_features()
    run.method.references.data *= 1e5
    with pytest.raises(Diverged) as error:
        run.step()
    told = float(str(error.value).split(" is ")[1].split(":")[0])
    assert episode_loss(tmp_path / "episode-0.safetensors") == pytest.approx(told, rel=1e-4)


def test_frozen_runs_share_their_features_whatever_their_seed(tmp_path, monkeypatch):
    train(recipe(episodes=1), tmp_path / "first", "cpu")
    monkeypatch.setattr("tapnet.evaluation.embedding.embed", None)
    train(recipe_from(recipe(episodes=1).as_dict() | {"seed": 7}, "the test"), tmp_path / "second", "cpu", test=False)


def test_frozen_run_refuses_a_method_with_nothing_to_learn(tmp_path):
    with pytest.raises(ValueError, match="no parameters besides its backbone"):
        train(recipe(method={"name": "protonet"}), tmp_path / "run", "cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"augmentation": "crop"}, "computed once per image, so training.augmentation needs to be none, got crop"),
        ({"backbone": {"name": "conv4"}}, "pretrained: efficientnet-lite0 or efficientnet-lite2 or hf, got conv4"),
        ({"init_from": "drawings"}, r"starts from random parameters: leave out training\.init_from"),
        ({"teachers": ["drawings"]}, "a frozen backbone trains on features, and teachers need images: set"),
    ],
)
def test_recipe_that_cannot_be_honoured_over_a_frozen_backbone_is_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        recipe(**changed)


def test_frozen_run_serves_a_hugging_face_model(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    model = transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **sizes))
    model.save_pretrained(tmp_path / "vit")
    train(recipe(backbone={"name": "hf", "options": {"model": str(tmp_path / "vit")}}), tmp_path / "run", "cpu")
    network = load_network(str(tmp_path / "run"))
    assert network.method.references.shape == (6, 16)
    assert network.preprocessing.fit == "crop"
    digest = read_checkpoint(tmp_path / "run").header.backbone_digest
    assert digest == load_network(f"hf:{tmp_path / 'vit'}").sha256

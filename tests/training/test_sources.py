import os
import signal

import numpy as np
import pytest
import torch

from tapnet.checkpoint import read_checkpoint
from tapnet.data import ImageSet
from tapnet.inference.networks import load_network
from tapnet.paths import BEST, LAST
from tapnet.recipe import recipe_from
from tapnet.training import Diverged, Interrupted, Run, find_runs, read_curve, train
from tapnet.training.faults import episode_loss
from tapnet.training.run_folder import CURVE
from tapnet.training.sources import ImageEpisodes
from tapnet.training.trajectory import TRAJECTORY


@pytest.fixture(autouse=True)
def photo_sets(monkeypatch, tmp_path):
    """Train and validation classes of similar colors with noise, 32×32, in place of a dataset."""

    def load(name, split, *_, **__):
        generator = np.random.default_rng(len(split))
        labels = np.repeat(np.arange(6), 6)
        colors = generator.integers(110, 146, (6, 1, 1, 3))[labels]
        pixels = (colors + generator.integers(-60, 61, (36, 32, 32, 3))).clip(0, 255).astype(np.uint8)
        return ImageSet(
            name,
            split,
            pixels,
            np.arange(36),
            labels,
            tuple(split + str(k) for k in range(6)),
            fingerprint=split.ljust(64, "0"),
        )

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


def test_frozen_run_is_an_ordinary_run_whose_checkpoints_leave_out_the_backbone(tmp_path):
    train(recipe(), tmp_path / "run", "cpu")
    for name in (BEST, LAST):
        assert set(read_checkpoint(tmp_path / "run" / name).weights) == {"references"}
    assert [point.episode for point in read_curve(tmp_path / "run")] == [10, 20]
    assert [(run.state, run.episode) for run in find_runs(tmp_path)] == [("finished", 20)]


def test_frozen_run_learns_and_its_checkpoint_works(tmp_path):
    losses = []
    train(recipe(episodes=60, learning_rate=3e-3), tmp_path, "cpu", watch=lambda step: losses.append(step.loss))
    assert np.mean(losses[-20:]) < 0.95 * np.mean(losses[:20])
    method = read_checkpoint(tmp_path).method()
    assert method.embed(torch.rand(2, 3, 32, 32)).shape == (2, 1280)


@pytest.mark.parametrize("episode", [4, 14])
def test_frozen_run_that_was_interrupted_resumes_bit_for_bit(tmp_path, episode):
    def stop(step):
        if step.episode == episode:
            os.kill(os.getpid(), signal.SIGINT)

    asked = recipe(meta_batch=2, weight_decay=1e-3)
    train(asked, tmp_path / "whole", "cpu", "float32")
    with pytest.raises(Interrupted, match=f"after episode {episode}"):
        train(asked, tmp_path / "parts", "cpu", "float32", watch=stop)
    train(asked, tmp_path / "parts", "cpu", "float32", resume=True)
    for name in (BEST, LAST, CURVE, TRAJECTORY):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "parts" / name).read_bytes()


def test_frozen_run_decays_its_references_as_any_run(tmp_path):
    run = Run(recipe(weight_decay=5e-4), tmp_path, "cpu", "float32")
    before = run.method.references.detach().clone()
    run.method.references.register_hook(torch.zeros_like)
    run.step()
    torch.testing.assert_close(run.method.references.detach(), before * (1 - 5e-4))


def test_frozen_run_that_diverged_keeps_its_episode(tmp_path):
    run = Run(recipe(), tmp_path, "cpu", "float32")
    run.start()
    run.method.references.data *= 1e5
    with pytest.raises(Diverged) as fault:
        run.step()
    told = float(str(fault.value).split(" is ")[1].split(":")[0])
    assert episode_loss(tmp_path / "episode-0.safetensors") == pytest.approx(told, rel=1e-4)


def test_frozen_runs_share_their_features_whatever_their_seed(tmp_path, monkeypatch):
    train(recipe(episodes=1), tmp_path / "first", "cpu")
    monkeypatch.setattr("tapnet.evaluation.embedding.embed", None)
    train(recipe_from(recipe(episodes=1).as_dict() | {"seed": 7}, "the test"), tmp_path / "second", "cpu")


def test_frozen_run_stores_temperatures(tmp_path):
    tables = read_checkpoint(train(recipe(episodes=1), tmp_path, "cpu")).header.calibration
    assert set(tables) == {"tapnet", "centroid", "logistic", "protonet"}


def test_frozen_run_refuses_a_method_with_nothing_to_learn(tmp_path):
    with pytest.raises(ValueError, match="no parameters besides its backbone"):
        train(recipe(method={"name": "protonet"}), tmp_path / "run", "cpu")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"augmentation": "affine"}, "computed once per image, so training.augmentation needs to be none, got affine"),
        (
            {"backbone": {"name": "conv4"}},
            "pretrained: efficientnet-lite0 or efficientnet-lite2 or hf, got conv4",
        ),
    ],
)
def test_recipe_that_cannot_be_honoured_over_a_frozen_backbone_is_refused(changed, words):
    with pytest.raises(ValueError, match=words):
        recipe(**changed)


def test_frozen_run_serves_a_hugging_face_model(tmp_path):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=8, **sizes)).save_pretrained(
        tmp_path / "vit"
    )
    backbone = {"name": "hf", "options": {"model": str(tmp_path / "vit")}}
    train(recipe(backbone=backbone), tmp_path / "run", "cpu")
    network = load_network(str(tmp_path / "run"))
    assert network.method.references.shape == (6, 16)
    assert network.preprocessing.fit == "crop"


def test_support_and_query_of_an_episode_are_augmented_together():
    kind = {"name": "conv4", "options": {"widths": [4, 4, 4, 16]}}
    plain, rotated = (
        recipe(backbone=kind, frozen_backbone=False, augmentation=augmentation) for augmentation in ("none", "rotate")
    )
    sets = [plain.data.images(split) for split in ("train", "val")]
    episode = sets[0].episodes(6, 1, 2)[0]
    before, after = (
        ImageEpisodes(asked, *sets, torch.device("cpu"), "float32").episode(episode, torch.Generator().manual_seed(1))
        for asked in (plain, rotated)
    )
    rotations = [
        {k for k in range(4) if torch.equal(changed, image.rot90(k, (-2, -1)))}
        for image, changed in ((before.support_images, after.support_images), (before.query_images, after.query_images))
    ]
    assert rotations[0] == rotations[1] != {0}

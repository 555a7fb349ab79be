import dataclasses
import json
import math
import os
import signal

import pytest
import torch

import tapnet
from tapnet.checkpoint import read_checkpoint
from tapnet.paths import BEST, LAST
from tapnet.recipe import ComponentConfig, Training, changed, recipe_from
from tapnet.training import Interrupted, Run, learning_rate, read_curve, train
from tapnet.training.faults import episode_loss
from tapnet.training.run_folder import EVALUATION, RunFolder
from tapnet.training.schedule import set_rates

pytestmark = pytest.mark.usefixtures("short_evaluation")


def recipe(**training):
    return recipe_from(
        {
            "name": "small",
            "data": {"name": "quickdraw"},
            "backbone": {"name": "conv4", "options": {"widths": [8, 8, 8, 8], "dropout": 0.1}},
            "method": {"name": "tapnet", "options": {"num_references": training.get("way", 6)}},
            "training": {"way": 6, "shot": 1, "query": 2, "episodes": 6, "augmentation": "affine"} | training,
            "validation": {"way": 5, "shot": 1, "query": 5, "episodes": 20, "every": 2},
        },
        "test",
    )


def stop_at(episode):
    """What a watcher does to behave like Ctrl-C after this episode."""

    def watch(step):
        if step.episode == episode:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


def test_a_run_leaves_its_recipe_curve_and_checkpoints(tmp_path):
    best = train(recipe(), tmp_path / "run", device="cpu")
    assert best == tmp_path / "run" / BEST
    assert {BEST, "curve.jsonl", LAST, "recipe.yaml"} <= {path.name for path in (tmp_path / "run").iterdir()}
    assert [point.episode for point in read_curve(tmp_path / "run")] == [2, 4, 6]
    assert tapnet.load(tmp_path / "run").references.shape == (6, 32)


def test_the_kept_checkpoint_is_the_best_on_validation_classes(tmp_path):
    train(recipe(), tmp_path, device="cpu")
    header = read_checkpoint(tmp_path).header
    best = max(read_curve(tmp_path), key=lambda point: point.validation_accuracy)
    assert header.validation["accuracy"] == best.validation_accuracy
    assert header.episode == best.episode


@pytest.mark.parametrize("episode", [2, 3])
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path, episode):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(recipe(), whole, device="cpu", precision="float32")
    with pytest.raises(Interrupted, match=f"after episode {episode}"):
        train(recipe(), parts, device="cpu", precision="float32", watch=stop_at(episode))
    train(recipe(), parts, device="cpu", precision="float32", resume=True)
    for name in (BEST, LAST, "curve.jsonl"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()


def test_an_interrupted_run_leaves_the_signal_handlers_as_they_were(tmp_path):
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted):
        train(recipe(), tmp_path, device="cpu", watch=stop_at(1))
    assert signal.getsignal(signal.SIGINT) is before


def test_training_touches_no_global_random_state(tmp_path):
    before = torch.get_rng_state()
    train(recipe(episodes=1), tmp_path, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)


def test_a_folder_with_a_run_is_not_overwritten(tmp_path):
    train(recipe(episodes=1), tmp_path, device="cpu")
    with pytest.raises(ValueError, match="already holds a run: resume it by `tapnet train --resume"):
        train(recipe(episodes=1), tmp_path, device="cpu")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"query": 3},
            r"of another recipe: only .* may change, got training.query from 2 to 3\. Choose another folder",
        ),
        ({"schedule": "step", "episodes": 8}, "training.schedule from cosine to step"),
        ({"episodes": 2}, "has done 4 episodes already: training.episodes needs to be more, got 2"),
        ({"episodes": 8}, "in whole cycles of 4 episodes: for instance training.episodes=8 training.cycles=2"),
    ],
)
def test_resume_refuses_a_recipe_that_would_have_led_elsewhere(tmp_path, changes, words):
    length = {"episodes": 4, "schedule": "cosine"}
    train(recipe(**length), tmp_path, device="cpu")
    with pytest.raises(ValueError, match=words):
        train(recipe(**length | changes), tmp_path, device="cpu", resume=True)


def test_a_run_continues_beyond_its_end_as_if_that_had_been_asked_for(tmp_path):
    longer = recipe(episodes=8, schedule="cosine", cycles=2)
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train(longer, whole, device="cpu", precision="float32")
    train(recipe(episodes=4, schedule="cosine"), parts, device="cpu", precision="float32")
    RunFolder(parts).record_evaluation([])
    train(longer, parts, device="cpu", precision="float32", resume=True)
    for name in (BEST, LAST, "curve.jsonl", "recipe.yaml", EVALUATION):
        assert (parts / name).read_bytes() == (whole / name).read_bytes()


def test_a_damaged_best_checkpoint_stops_a_run_that_resumes_before_anything_is_written(tmp_path):
    train(recipe(episodes=4, schedule="cosine"), tmp_path, device="cpu")
    (tmp_path / BEST).write_bytes(b"rubbish")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".json"}
    with pytest.raises(ValueError, match=r"best\.safetensors is damaged .* Delete it to resume without it"):
        train(recipe(episodes=8, schedule="cosine", cycles=2), tmp_path, device="cpu", resume=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".json"} == before


def test_a_run_without_its_best_checkpoint_keeps_the_next_one(tmp_path):
    train(recipe(episodes=4, schedule="cosine"), tmp_path, device="cpu")
    (tmp_path / BEST).unlink()
    train(recipe(episodes=8, schedule="cosine", cycles=2), tmp_path, device="cpu", resume=True)
    assert read_checkpoint(tmp_path / BEST).header.episode > 4


def test_a_run_that_stops_beyond_its_end_is_one_of_the_longer_recipe(tmp_path):
    longer = recipe(episodes=8, schedule="cosine", cycles=2)
    train(recipe(episodes=4, schedule="cosine"), tmp_path, device="cpu")

    def fail(_):
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        train(longer, tmp_path, device="cpu", resume=True, watch=fail)
    for name in (BEST, LAST):
        assert read_checkpoint(tmp_path / name).header.recipe == longer


@pytest.mark.parametrize(
    ("training", "words"),
    [({"way": 241}, "need 241 classes, the data has 240"), ({"shot": 99, "query": 2}, "need 101 images per class")],
)
def test_episodes_that_the_data_cannot_give_are_refused_before_training(tmp_path, training, words):
    with pytest.raises(ValueError, match=words):
        train(recipe(**training), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_loss_that_is_not_finite_stops_with_its_episode(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.nn.functional.cross_entropy", lambda logits, _: logits.sum() * math.nan)
    with pytest.raises(ValueError, match="loss of episode 0 is nan: lower"):
        train(recipe(), tmp_path, device="cpu")


def test_features_that_are_not_numbers_stop_with_their_episode_kept(tmp_path):
    run = Run(recipe(), tmp_path, "cpu", "float32")
    run.method.references.data.fill_(math.nan)
    with pytest.raises(ValueError, match="loss of episode 0 is nan: lower"):
        run.step()
    assert math.isnan(episode_loss(tmp_path / "episode-0.safetensors"))


@pytest.mark.parametrize("rate", [1e-3, 1e-6])
def test_weight_decay_does_not_depend_on_the_learning_rate(tmp_path, rate):
    """Without a gradient a step takes every weight to w · (1 - decay), as in the authors' code."""
    run = Run(recipe(weight_decay=5e-4, learning_rate=rate), tmp_path, "cpu", "float32")
    before = run.method.references.detach().clone()
    for parameter in run.method.parameters():
        parameter.register_hook(torch.zeros_like)
    run.step()
    torch.testing.assert_close(run.method.references.detach(), before * (1 - 5e-4))


@pytest.mark.parametrize(("episode", "rate"), [(0, 1e-2), (9, 1e-2), (10, 1e-3), (25, 1e-4)])
def test_step_schedule_cuts_every_so_many_episodes(episode, rate):
    training = recipe(learning_rate=1e-2, decay_every=10, decay_ratio=0.1, episodes=30).training
    assert learning_rate(training, episode) == pytest.approx(rate)


@pytest.mark.parametrize(("episode", "share"), [(0, 1.0), (10, 0.5), (19, 0.006), (20, 1.0), (30, 0.5), (39, 0.006)])
def test_cosine_schedule_goes_down_to_zero_in_each_cycle(episode, share):
    training = recipe(learning_rate=1e-2, schedule="cosine", episodes=40, cycles=2).training
    assert learning_rate(training, episode) == pytest.approx(1e-2 * share, abs=1e-5)


def test_seconds_of_training_beat_no_training_by_far(tmp_path):
    """It really learns: unseen classes of drawings, narrow network, some seconds."""
    quick = recipe_from(
        recipe().as_dict()
        | {
            "backbone": {"name": "conv4", "options": {"widths": [16, 16, 16, 16]}},
            "method": {"name": "tapnet", "options": {"num_references": 20}},
            "training": {"way": 20, "shot": 2, "query": 4, "episodes": 60, "learning_rate": 5e-3, "schedule": "cosine"},
            "validation": {"way": 5, "shot": 5, "query": 10, "episodes": 200, "every": 60},
        },
        "test",
    )
    train(quick, tmp_path, device="cpu", precision="float32")
    accuracy = read_curve(tmp_path)[-1].validation_accuracy
    assert accuracy > 0.6, json.dumps(accuracy)


def test_too_few_images_for_validation_are_told_from_those_for_training(tmp_path):
    with pytest.raises(ValueError, match=r"For validation \(validation\.way, .*5-query episodes need"):
        train(changed(recipe(), ["validation.shot=96"]), tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()


def test_a_run_tells_a_method_with_auxiliary_classes_how_many_there_are(tmp_path):
    small = dataclasses.replace(recipe(), method=ComponentConfig("tadam-tc"))
    train(small, tmp_path, device="cpu")
    classes = len(small.data.images("train").class_names)
    assert read_checkpoint(tmp_path).header.recipe.method.options == {"num_classes": classes}
    assert tapnet.load(tmp_path).auxiliary.out_features == classes


def test_a_run_with_auxiliary_classes_resumes_by_the_recipe_that_it_began_with(tmp_path):
    small = dataclasses.replace(recipe(), method=ComponentConfig("tadam-tc"))
    with pytest.raises(Interrupted):
        train(small, tmp_path, device="cpu", watch=stop_at(2))
    train(small, tmp_path, device="cpu", resume=True)
    assert [point.episode for point in read_curve(tmp_path)] == [2, 4, 6]


def test_a_run_is_not_calibrated_on_classes_that_it_was_trained_on(tmp_path):
    both = changed(recipe(), ["data.train_split=trainval"])
    assert read_checkpoint(train(both, tmp_path / "both", device="cpu", test=False)).header.calibration == {}
    assert read_checkpoint(train(recipe(), tmp_path / "one", device="cpu", test=False)).header.calibration


def test_weights_still_decay_where_the_learning_rate_is_too_small_for_a_number():
    training = Training(5, 1, 5, 1000, decay_every=1, decay_ratio=0.1, weight_decay=0.01)
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
    set_rates(optimizer, training, 999)
    (group,) = optimizer.param_groups
    assert group["lr"] * group["weight_decay"] == pytest.approx(0.01)

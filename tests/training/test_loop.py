"""A whole run: what it leaves, how it resumes, what stops it."""

import dataclasses
import signal

import pytest
import torch
from small_runs import interrupt_after, new_run, same_files, small_recipe

import tapnet
from tapnet.checkpoint import read_checkpoint
from tapnet.cli import main
from tapnet.evaluation.evaluator import Evaluator
from tapnet.paths import BEST, LAST
from tapnet.recipe import ComponentConfig, changed
from tapnet.training import Interrupted, RunFolder, learning_rate, read_curve, train
from tapnet.training.loop import VALIDATION_SEED, set_rates
from tapnet.training.run_folder import CURVE, EVALUATION, SNAPSHOTS

pytestmark = pytest.mark.usefixtures("short_evaluation")

COSINE = {"episodes": 4, "schedule": "cosine"}
LONGER = {"episodes": 8, "schedule": "cosine", "cycles": 2}


def run_in(folder, recipe, **options):
    train(recipe, folder, "cpu", "float32", **{"test": False, **options})
    return folder


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    return run_in(tmp_path_factory.mktemp("runs") / "whole", small_recipe())


@pytest.fixture(scope="module")
def cosine(tmp_path_factory):
    return run_in(tmp_path_factory.mktemp("runs") / "cosine", small_recipe(**COSINE))


@pytest.fixture
def copied(cosine, tmp_path):
    """A copy of a finished run of four episodes by a cosine."""
    for path in cosine.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    return tmp_path


def test_run_leaves_its_recipe_curve_and_checkpoints(finished):
    assert {BEST, CURVE, LAST, "recipe.yaml"} <= {path.name for path in finished.iterdir()}
    assert [point.episode for point in read_curve(finished)] == [0, 2, 4, 6]
    assert tapnet.load(finished).references.shape == (6, 32)


def test_run_keeps_the_best_checkpoint_on_validation_classes(finished):
    header = read_checkpoint(finished).header
    best = max(read_curve(finished), key=lambda point: point.validation_accuracy)
    assert header.validation["accuracy"] == best.validation_accuracy
    assert header.episode == best.episode


def test_run_that_only_gets_worse_keeps_its_start_and_says_so(tmp_path, capsys):
    """It starts from a trained network and moves away from it at a rate that destroys it."""
    small = ["training.way=6", "method.options.num_references=6", "training.episodes=2", "validation.episodes=50"]
    worse = ["training.optimizer=sgd", "training.learning_rate=10", "training.schedule=step", "validation.every=1"]
    arguments = ["--from", "drawings", "--no-test", "--device", "cpu", "--set", *small, *worse]
    assert main(["train", "quickdraw", "--out", str(tmp_path), *arguments]) == 0
    best, start = read_checkpoint(tmp_path), read_checkpoint("drawings")
    assert best.header.validation["episode"] == 0
    name = "backbone.blocks.0.0.weight"
    torch.testing.assert_close(best.weights[name], start.method().state_dict()[name])
    assert "no step of training made it better" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("training", "episode"),
    [({}, 0), ({}, 2), ({}, 3), ({"optimizer": "adam", "clip_norm": 0.1, "weight_decay": 1e-3}, 3)]
    + [({"optimizer": "sgd", "ema_decay": 0.6}, episode) for episode in (1, 3)],
)
def test_interrupted_run_resumes_bit_for_bit(tmp_path, finished, training, episode):
    recipe, parts = small_recipe(**training), tmp_path / "parts"
    whole = run_in(tmp_path / "whole", recipe) if training else finished
    with pytest.raises(Interrupted, match=f"after episode {episode}"):
        run_in(parts, recipe, watch=interrupt_after(episode))
    run_in(parts, recipe, resume=True)
    assert same_files(whole, parts, BEST, LAST, CURVE, SNAPSHOTS)


def test_training_leaves_signal_handlers_and_global_random_state_as_they_were(tmp_path):
    handler, state = signal.getsignal(signal.SIGINT), torch.get_rng_state()
    with pytest.raises(Interrupted):
        run_in(tmp_path, small_recipe(), watch=interrupt_after(1))
    assert signal.getsignal(signal.SIGINT) is handler
    assert torch.equal(torch.get_rng_state(), state)


def test_folder_with_a_run_is_not_overwritten(cosine):
    with pytest.raises(ValueError, match="already holds a run: resume it by `tapnet train --resume"):
        run_in(cosine, small_recipe(**COSINE))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"query": 3}, r"another recipe: only .* may change, got training.query from 2 to 3\. Choose another folder"),
        ({"schedule": "step", "episodes": 8}, "training.schedule from cosine to step"),
        ({"episodes": 2}, "has done 4 episodes already: training.episodes needs to be more, got 2"),
        ({"episodes": 8}, "in whole cycles of 4 episodes: for instance training.episodes=8 training.cycles=2"),
    ],
)
def test_resume_refuses_a_recipe_that_would_have_led_elsewhere(cosine, changes, words):
    with pytest.raises(ValueError, match=words):
        run_in(cosine, small_recipe(**COSINE | changes), resume=True)


def test_run_continues_beyond_its_end_as_if_that_had_been_asked_for(copied, tmp_path_factory):
    whole = run_in(tmp_path_factory.mktemp("runs") / "longer", small_recipe(**LONGER), test=True)
    RunFolder(copied).record_evaluation([])
    run_in(copied, small_recipe(**LONGER), resume=True, test=True)
    assert same_files(whole, copied, BEST, LAST, CURVE, "recipe.yaml", EVALUATION)


def test_damaged_best_checkpoint_stops_a_run_that_resumes_before_anything_is_written(copied):
    (copied / BEST).write_bytes(b"rubbish")
    before = {path.name: path.read_bytes() for path in copied.iterdir() if path.suffix != ".json"}
    with pytest.raises(ValueError, match=r"best\.safetensors is damaged .* Delete it to resume without it"):
        run_in(copied, small_recipe(**LONGER), resume=True)
    assert {path.name: path.read_bytes() for path in copied.iterdir() if path.suffix != ".json"} == before


def test_run_without_its_best_checkpoint_keeps_the_next_one(copied):
    (copied / BEST).unlink()
    run_in(copied, small_recipe(**LONGER), resume=True)
    assert read_checkpoint(copied / BEST).header.episode > 4


def test_run_that_stops_beyond_its_end_is_one_of_the_longer_recipe(copied):
    def fail(_):
        raise RuntimeError("power cut")

    with pytest.raises(RuntimeError, match="power cut"):
        run_in(copied, small_recipe(**LONGER), resume=True, watch=fail)
    assert all(read_checkpoint(copied / name).header.recipe == small_recipe(**LONGER) for name in (BEST, LAST))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (["training.way=241", "method.options.num_references=241"], "need 241 classes, the data has 240"),
        (["training.shot=99"], "need 101 images per class"),
        (["validation.shot=96"], r"For validation \(validation\.way, .*5-query episodes need"),
    ],
)
def test_episodes_that_the_data_cannot_give_are_refused_before_training(tmp_path, changes, words):
    with pytest.raises(ValueError, match=words):
        run_in(tmp_path / "run", changed(small_recipe(), changes))
    assert not (tmp_path / "run").exists()


def test_seconds_of_training_beat_no_training_by_far(tmp_path):
    """It really learns: unseen classes of drawings, narrow network, some seconds."""
    training = {"way": 20, "shot": 2, "query": 4, "episodes": 60, "learning_rate": 5e-3, "schedule": "cosine"}
    changes = ["backbone={name: conv4, options: {widths: [16, 16, 16, 16]}}", "training.augmentation=none"]
    changes += ["validation={way: 5, shot: 5, query: 10, episodes: 200, every: 60}"]
    run_in(tmp_path, changed(small_recipe(**training), changes))
    assert read_curve(tmp_path)[-1].validation_accuracy > 0.6


def test_run_tells_a_method_with_auxiliary_classes_how_many_there_are(tmp_path):
    small = dataclasses.replace(small_recipe(), method=ComponentConfig("tadam-tc"))
    with pytest.raises(Interrupted):
        run_in(tmp_path, small, watch=interrupt_after(2))
    run_in(tmp_path, small, resume=True)  # by the recipe that it began with
    classes = len(small.data.images("train").class_names)
    assert read_checkpoint(tmp_path).header.recipe.method.options == {"num_classes": classes}
    assert tapnet.load(tmp_path).auxiliary.out_features == classes
    assert [point.episode for point in read_curve(tmp_path)] == [0, 2, 4, 6]


def test_run_is_not_calibrated_on_classes_that_it_was_trained_on(tmp_path, finished):
    both = changed(small_recipe(), ["data.train_split=trainval"])
    assert read_checkpoint(run_in(tmp_path, both)).header.calibration == {}
    assert read_checkpoint(finished).header.calibration


CUT, CYCLES = {"decay_every": 10, "decay_ratio": 0.1}, {"schedule": "cosine", "cycles": 2}


@pytest.mark.parametrize(
    ("schedule", "episode", "share"),
    [(CUT, episode, share) for episode, share in ((0, 1.0), (9, 1.0), (10, 0.1), (25, 0.01))]
    + [(CYCLES, start + episode, share) for start in (0, 20) for episode, share in ((0, 1.0), (10, 0.5), (19, 0.006))],
)
def test_learning_rate_is_cut_every_so_many_episodes_or_goes_down_to_zero_in_each_cycle(schedule, episode, share):
    training = small_recipe(learning_rate=1e-2, episodes=40, **schedule).training
    assert learning_rate(training, episode) == pytest.approx(1e-2 * share, abs=1e-5)


@pytest.mark.parametrize("rate", [1e-3, 1e-6])
def test_weight_decay_does_not_depend_on_the_learning_rate(tmp_path, rate):
    """Without a gradient a step takes every weight to w · (1 - decay), as in the authors' code."""
    run = new_run(small_recipe(weight_decay=5e-4, learning_rate=rate), tmp_path)
    before = run.method.references.detach().clone()
    for parameter in run.method.parameters():
        parameter.register_hook(torch.zeros_like)
    run.step()
    torch.testing.assert_close(run.method.references.detach(), before * (1 - 5e-4))


def test_weight_decay_remains_where_the_learning_rate_is_too_small_for_a_number():
    training = small_recipe(episodes=1000, decay_every=1, weight_decay=0.01).training
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
    set_rates(optimizer, training, 999)
    (group,) = optimizer.param_groups
    assert group["lr"] * group["weight_decay"] == pytest.approx(0.01)


def test_clip_norm_bounds_the_gradient_of_a_step(tmp_path):
    """The first step of SGD with Nesterov momentum moves the weights by 1.9 times rate and gradient."""
    sgd = {"optimizer": "sgd", "learning_rate": 1.0}
    run = new_run(small_recipe(**sgd, clip_norm=1e-3), tmp_path)
    before = {name: parameter.detach().clone() for name, parameter in run.method.named_parameters()}
    run.step()
    moves = [(parameter.detach() - before[name]).norm() for name, parameter in run.method.named_parameters()]
    assert torch.stack(moves).norm().item() == pytest.approx(1.9e-3, rel=1e-3)


DECAY = 0.6


def states(folder, **training):
    """The weights after each step of a short run, and the average that the run ends with."""
    run, after = new_run(small_recipe(**training), folder), []
    while run.episode < run.recipe.training.episodes:
        run.step()
        after.append({name: tensor.clone() for name, tensor in run.method.state_dict().items()})
    run.loader.close()
    return after, run.validated.state_dict()


def test_weight_average_is_the_one_computed_by_hand(tmp_path):
    steps, average = states(tmp_path, ema_decay=DECAY)
    plain, _ = states(tmp_path)
    for name, expected in steps[0].items():
        for step in steps[1:]:
            expected = DECAY * expected + (1 - DECAY) * step[name] if expected.is_floating_point() else step[name]
        torch.testing.assert_close(average[name], expected)
        assert torch.equal(steps[-1][name], plain[-1][name])  # the weights that learn are left alone


def test_weight_average_moves_once_per_meta_batch(tmp_path):
    steps, average = states(tmp_path, ema_decay=0.5, meta_batch=3)
    torch.testing.assert_close(average["references"], (steps[0]["references"] + steps[1]["references"]) / 2)


def test_weight_average_is_what_a_run_validates_and_keeps(tmp_path):
    recipe = small_recipe(ema_decay=0.5, episodes=2)
    run_in(tmp_path, changed(recipe, ["training.learning_rate=1e-2"]))
    spec, last = recipe.validation.episode_spec(VALIDATION_SEED), read_checkpoint(tmp_path / LAST)
    method = last.method()
    method.load_state_dict(last.average)
    accuracy = Evaluator(method, recipe.data.images("val")).accuracies(spec).mean()
    assert accuracy == pytest.approx(read_curve(tmp_path)[-1].validation_accuracy, abs=0.02)


@pytest.mark.parametrize(
    ("decay", "words"),
    [
        (1, "`training.ema_decay`: Input should be less than 1"),
        (0.999, "averages over about 1000 steps, more than the 6 of the run: lower it, set it to null, or raise"),
    ],
)
def test_recipe_refuses_an_average_that_makes_no_sense(decay, words):
    with pytest.raises(ValueError, match=words):
        small_recipe(ema_decay=decay)

import os
import signal

import pytest
import torch

from tapnet.checkpoint import load, read_checkpoint
from tapnet.evaluation.evaluator import Evaluator
from tapnet.paths import BEST, LAST
from tapnet.recipe import recipe_from
from tapnet.training import Interrupted, Run, train
from tapnet.training.averaging import WeightAverage
from tapnet.training.run import VALIDATION_SEED

pytestmark = pytest.mark.usefixtures("short_evaluation")

DECAY = 0.6


def recipe(**training):
    return recipe_from(
        {
            "name": "small",
            "data": {"name": "quickdraw"},
            "backbone": {"name": "conv4", "options": {"widths": [8, 8, 8, 8], "dropout": 0.1}},
            "method": {"name": "tapnet", "options": {"num_references": 6}},
            "training": {"way": 6, "shot": 1, "query": 2, "episodes": 6, "augmentation": "affine"} | training,
            "validation": {"way": 5, "shot": 1, "query": 5, "episodes": 20, "every": 2},
        },
        "test",
    )


def interrupt_after(episode):
    """What a watcher does to behave like Ctrl-C after this episode."""

    def watch(step):
        if step.episode == episode:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


def states(folder, **training):
    """The weights after each step of a short run, and the average that the run ends with."""
    run = Run(recipe(**training), folder, "cpu", "float32")
    after = []
    with run.opened(resume=False):
        while run.episode < run.recipe.training.episodes:
            run.step()
            after.append({name: tensor.clone() for name, tensor in run.method.state_dict().items()})
    return after, run.validated.state_dict()


def test_weight_average_is_the_one_computed_by_hand(tmp_path):
    steps, average = states(tmp_path, ema_decay=DECAY)
    for name, first in steps[0].items():
        expected = first
        for step in steps[1:]:
            expected = DECAY * expected + (1 - DECAY) * step[name]
        if first.is_floating_point():
            torch.testing.assert_close(average[name], expected)


def test_weight_average_counts_batches_as_the_network_does(tmp_path):
    steps, average = states(tmp_path, ema_decay=DECAY)
    counts = [name for name in average if name.endswith("num_batches_tracked")]
    assert counts
    assert all(average[name] == steps[-1][name] == 6 for name in counts)


def test_weight_average_moves_once_per_meta_batch(tmp_path):
    steps, average = states(tmp_path, ema_decay=0.5, meta_batch=3)
    torch.testing.assert_close(average["references"], (steps[0]["references"] + steps[1]["references"]) / 2)


def test_weight_average_leaves_the_weights_that_learn_alone(tmp_path):
    averaged, plain = (states(tmp_path / str(decay), ema_decay=decay)[0] for decay in (DECAY, None))
    assert all(torch.equal(averaged[-1][name], plain[-1][name]) for name in plain[-1])


def test_weight_average_is_what_a_run_keeps(tmp_path):
    train(recipe(ema_decay=0.5, episodes=2), tmp_path, "cpu", "float32", test=False)
    best, last = read_checkpoint(tmp_path / BEST), read_checkpoint(tmp_path / LAST)
    assert best.weights.keys() == last.average.keys()
    assert all(torch.equal(best.weights[name], last.average[name]) for name in best.weights)


def test_weight_average_gives_the_validation_accuracy_of_its_run(tmp_path):
    asked = recipe(ema_decay=0.5, episodes=2)
    train(asked, tmp_path, "cpu", "float32", test=False)
    spec = asked.validation.episode_spec(VALIDATION_SEED)
    accuracy = Evaluator(load(tmp_path), asked.data.images("val")).accuracies(spec).mean()
    assert accuracy == pytest.approx(read_checkpoint(tmp_path).header.validation["accuracy"], abs=0.02)


@pytest.mark.parametrize("episode", [1, 3])
def test_weight_average_of_an_interrupted_run_resumes_bit_for_bit(tmp_path, episode):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    asked = recipe(ema_decay=DECAY)
    train(asked, whole, "cpu", "float32", test=False)
    with pytest.raises(Interrupted):
        train(asked, parts, "cpu", "float32", watch=interrupt_after(episode), test=False)
    train(asked, parts, "cpu", "float32", resume=True, test=False)
    for name in (BEST, LAST, "curve.jsonl", "references.safetensors"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()


def test_weight_average_is_continued_by_what_it_gave():
    torch.manual_seed(0)
    method = recipe().build((1, 28, 28))
    first = WeightAverage(method, DECAY)
    first.update()
    second = WeightAverage(method, DECAY)
    second.restore({name: tensor.clone() for name, tensor in first.tensors().items()})
    with torch.no_grad():
        method.references.add_(1)
    first.update()
    second.update()
    assert torch.equal(first.method.references, second.method.references)


@pytest.mark.parametrize(
    ("decay", "words"),
    [
        (0, "`training.ema_decay`: Input should be greater than 0"),
        (1, "`training.ema_decay`: Input should be less than 1"),
        (0.999, "averages over about 1000 steps, more than the 6 of the run: lower it, set it to null, or raise"),
    ],
)
def test_recipe_refuses_an_average_that_makes_no_sense(decay, words):
    with pytest.raises(ValueError, match=words):
        recipe(ema_decay=decay)

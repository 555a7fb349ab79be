import json
import os
import signal

import pytest

from tapnet.cli import main
from tapnet.paper.results import read_ablations
from tapnet.paths import LAST
from tapnet.training import Run

SMALL = [
    "backbone.options.widths=[8, 8, 8, 8]",
    "method.options.num_references=6",
    "training.way=6",
    "training.shot=1",
    "training.query=2",
    "training.episodes=2",
    "validation.episodes=4",
    "validation.every=2",
]


def ablate(*arguments):
    return main(["ablate", *map(str, arguments), "--device", "cpu"])


def train(name, out, *arguments):
    return ablate(name, "--recipe", "quickdraw", "--out", out, "--episodes", 4, *arguments, "--set", *SMALL)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "gradient"
    assert train("gradient", out) == 0
    return out


def test_a_trained_ablation_leaves_a_run_a_variant_and_does_not_train_it_again(trained, capsys, monkeypatch):
    assert sorted(path.name for path in trained.iterdir()) == ["constant", "through"]
    monkeypatch.setattr(Run, "step", None)  # a step would fail
    assert train("gradient", trained) == 0
    printed = capsys.readouterr()
    assert "trained once, for 2 episodes" in printed.out
    assert f"constant: trained already, in {trained / 'constant'}\n" in printed.err
    assert train("gradient", trained, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["recipe"]["name"] == "quickdraw"
    assert [row["training_episodes"] for row in result["rows"]] == [2, 2]
    assert train("gradient", trained, "--set", "seed=1") == 2
    assert "holds a run of another recipe" in capsys.readouterr().err
    assert main(["ablate"]) == 0
    listed = capsys.readouterr().out
    assert "selection" in listed
    assert "episode-composition" in listed


def test_an_interrupted_ablation_resumes(tmp_path, monkeypatch, capsys):
    step, steps = Run.step, []

    def counted_step(self):
        steps.append(self.episode)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    monkeypatch.setattr(Run, "step", counted_step)
    assert train("distance", tmp_path) == 130
    assert "Resume with: the same command" in capsys.readouterr().err
    assert (tmp_path / "euclidean" / LAST).exists()
    assert train("distance", tmp_path) == 0
    assert steps == [0, 1, 0, 1]  # the first variant was not trained again
    assert "euclidean" in capsys.readouterr().out


def test_a_measured_ablation_prints_the_paired_difference(trained, capsys):
    assert ablate("selection", "--checkpoint", trained / "constant", "--episodes", 4) == 0
    printed = capsys.readouterr().out
    for word in ("closest", "random", "farthest", "optimal", "difference"):
        assert word in printed


def test_json_and_the_kept_file_say_the_same(trained, tmp_path, capsys):
    asked = ("--checkpoint", trained / "constant", "--episodes", 4, "--split", "val", "--json", "--record", tmp_path)
    assert ablate("dimension", *asked) == 0
    printed = json.loads(capsys.readouterr().out)
    (recorded,) = read_ablations(tmp_path)
    assert recorded == printed
    assert (printed["name"], printed["task"]["split"]) == ("dimension", "val")
    assert len(printed["rows"]) == 32 - 5  # 8 maps of 2 by 2


def test_the_ways_of_an_ablation_of_ways_are_those_of_its_rows(trained, capsys, tmp_path):
    asked = ("--checkpoint", trained / "constant", "--episodes", 4, "--record", tmp_path)
    assert ablate("ways", *asked) == 0
    printed = capsys.readouterr()
    assert "ways: 5-shot on quickdraw (test), 4 episodes" in printed.out
    assert "difference" not in printed.out
    assert str(tmp_path / "quickdraw" / "quickdraw-constant.json") in printed.err.replace("\n", "")


MISTAKES = [
    ("--json", "--json needs the name of an ablation"),
    ("nothing", "An ablation is one of selection"),
    ("selection", "Expected either --checkpoint, to vary a trained network, or --recipe"),
    ("selection --checkpoint drawings --recipe quickdraw", "Expected either --checkpoint"),
    ("selection --recipe quickdraw", "need no training: use --checkpoint"),
    ("distance --checkpoint drawings", "need training: use --recipe"),
    ("selection --checkpoint drawings --out x", "leave them out, or use --recipe"),
    ("selection --checkpoint drawings --episodes 0", "Episodes need episodes >= 1, got episodes=0"),
    ("gradient --recipe quickdraw --set training.query=99", "101 images per class"),
    ("gradient --recipe quickdraw --set method.options.selection=nothing", "closest, optimal, farthest"),
    (
        "distance --recipe quickdraw --way 10 --set training.way=6 method.options.num_references=6",
        "The variant squared has 6 references, too few for tasks of 10 classes: choose a smaller way. (--way)",
    ),
    ("distance --recipe quickdraw --split tset", "tset"),
    ("distance --recipe quickdraw --shot 99", "99"),
]


@pytest.mark.parametrize(("command", "words"), MISTAKES)
def test_a_mistake_ends_in_one_sentence_and_leaves_nothing(command, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Run, "step", None)  # a step would fail
    assert ablate(*command.split()) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []

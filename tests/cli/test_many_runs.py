"""Sweeps and ablations: ordinary runs, trained one after another, none of them twice."""

import json
import os
import signal
from functools import partial
from pathlib import Path

import pytest
import yaml

from tapnet.cli import main
from tapnet.paper.results import read_ablations
from tapnet.paths import BEST, LAST
from tapnet.training import Run, RunFolder

SMALL = {
    "backbone.options.widths": [8, 8, 8, 8],
    "method.options.num_references": 6,
    "training.way": 6,
    "training.shot": 1,
    "training.query": 2,
    "training.episodes": 2,
    "validation.episodes": 4,
    "validation.every": 2,
}


def write_sweep(**keys):
    Path("mine.yaml").write_text(yaml.safe_dump({"recipe": "quickdraw", "set": SMALL} | keys))


def sweep(*arguments):
    return main(["sweep", "mine.yaml", *arguments, "--device", "cpu"])


def ablate(*arguments):
    return main(["ablate", *map(str, arguments), "--device", "cpu"])


def train(name, out, *arguments):
    changes = [f"{key}={value}" for key, value in SMALL.items()]
    return ablate(name, "--recipe", "quickdraw", "--out", out, "--episodes", 4, *arguments, "--set", *changes)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, with the file of a sweep over two seeds."""
    monkeypatch.chdir(tmp_path)
    write_sweep(seeds=[0, 1])
    return tmp_path


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "gradient"
    assert train("gradient", out) == 0
    return out


def test_a_sweep_leaves_ordinary_run_folders_and_trains_none_again(folder, monkeypatch, capsys):
    assert sweep() == 0
    folders = [folder / "runs" / "mine" / f"quickdraw-seed{seed}" for seed in (0, 1)]
    assert [RunFolder(path).metadata()["state"] for path in folders] == ["finished", "finished"]
    assert all((path / BEST).exists() for path in folders)
    assert "tapnet compare runs/mine/quickdraw-seed0 runs/mine/quickdraw-seed1" in capsys.readouterr().out
    monkeypatch.setattr(Run, "step", None)  # a step would fail
    assert sweep() == 0
    assert "2 of 2 runs trained already, in runs/mine" in capsys.readouterr().err
    write_sweep(seeds=[0, 1], set=SMALL | {"training.query": 3})
    assert sweep() == 2
    assert "holds a run of another recipe" in capsys.readouterr().err


def test_a_trained_ablation_leaves_a_run_a_variant_and_does_not_train_it_again(trained, capsys, monkeypatch):
    assert sorted(path.name for path in trained.iterdir()) == ["constant", "through"]
    monkeypatch.setattr(Run, "step", None)  # a step would fail
    assert train("gradient", trained) == 0
    printed = capsys.readouterr()
    assert "trained once, for 2 episodes" in printed.out
    assert f"2 of 2 runs trained already, in {trained}\n" in printed.err
    assert train("gradient", trained, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["recipe"]["name"] == "quickdraw"
    assert [row["training_episodes"] for row in result["rows"]] == [2, 2]
    assert train("gradient", trained, "--set", "seed=1") == 2
    assert "holds a run of another recipe" in capsys.readouterr().err


@pytest.mark.parametrize("run", [sweep, partial(train, "distance", "runs")], ids=["sweep", "ablate"])
def test_runs_that_are_interrupted_continue_where_they_were(run, folder, monkeypatch, capsys):
    step, steps = Run.step, []

    def counted_step(self):
        steps.append(self.episode)
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    monkeypatch.setattr(Run, "step", counted_step)
    assert run() == 130
    assert "Resume with: the same command" in capsys.readouterr().err
    assert len([*folder.rglob(LAST)]) == 2
    assert run() == 0
    assert steps == [0, 1, 0, 1]  # the first was not trained again


def test_a_run_that_fails_does_not_stop_the_others(folder, monkeypatch, capsys):
    step = Run.step

    def failing_step(self):
        if self.recipe.seed == 0:
            raise OSError(28, "No space left on device")
        return step(self)

    monkeypatch.setattr(Run, "step", failing_step)
    with pytest.raises(SystemExit) as end:
        sweep()
    assert end.value.code == 1
    assert "quickdraw-seed0 failed: No space left on device" in capsys.readouterr().err
    assert (folder / "runs" / "mine" / "quickdraw-seed1" / BEST).exists()


def test_a_recipe_that_cannot_be_trained_is_refused_before_the_first_run(folder, capsys):
    write_sweep(grid={"training.query": [2, 99999]})
    assert sweep() == 2
    assert "99999" in capsys.readouterr().err
    assert not (folder / "runs").exists()


def test_list_prints_the_folders_and_trains_nothing(folder, capsys):
    assert sweep("--list", "--out", "elsewhere") == 0
    assert capsys.readouterr().out == "elsewhere/quickdraw-seed0\nelsewhere/quickdraw-seed1\n"
    assert not (folder / "elsewhere").exists()


def test_a_sweep_with_test_scores_test_classes(folder):
    write_sweep(test=True)
    assert sweep() == 0
    assert (folder / "runs" / "mine" / "quickdraw" / "evaluation.json").exists()


def test_a_measured_ablation_prints_the_paired_difference(trained, capsys):
    assert ablate("selection", "--checkpoint", trained / "constant", "--episodes", 4) == 0
    printed = capsys.readouterr().out
    for word in ("closest", "random", "farthest", "optimal", "difference"):
        assert word in printed


def test_json_and_the_recorded_ablation_say_the_same(trained, tmp_path, capsys):
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

import os
import signal

import pytest

from tapnet.cli import main
from tapnet.paths import BEST, LAST
from tapnet.training import Run, RunFolder

FILE = """
recipe: quickdraw
set:
  backbone.options.widths: [8, 8, 8, 8]
  method.options.num_references: 6
  training.way: 6
  training.shot: 1
  training.query: 2
  training.episodes: 2
  validation.episodes: 4
  validation.every: 2
seeds: [0, 1]
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(FILE)
    return tmp_path / "mine.yaml"


def sweep(*arguments):
    return main(["sweep", *map(str, arguments), "--device", "cpu"])


def test_a_sweep_leaves_ordinary_run_folders_and_trains_none_again(file, tmp_path, monkeypatch, capsys):
    assert sweep(file) == 0
    folders = [tmp_path / "runs" / "mine" / f"quickdraw-seed{seed}" for seed in (0, 1)]
    assert [RunFolder(folder).metadata()["state"] for folder in folders] == ["finished", "finished"]
    assert all((folder / BEST).exists() for folder in folders)
    assert "tapnet compare runs/mine/quickdraw-seed0 runs/mine/quickdraw-seed1" in capsys.readouterr().out
    monkeypatch.setattr(Run, "step", None)  # a step would fail
    assert sweep(file) == 0
    assert "2 of 2 runs trained already, in runs/mine" in capsys.readouterr().err
    file.write_text(FILE.replace("training.query: 2", "training.query: 3"))
    assert sweep(file) == 2
    assert "holds a run of another recipe" in capsys.readouterr().err


def test_an_interrupted_sweep_continues_where_it_was(file, monkeypatch, capsys):
    step, steps = Run.step, []

    def counted_step(self):
        steps.append((self.recipe.seed, self.episode))
        if len(steps) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    monkeypatch.setattr(Run, "step", counted_step)
    assert sweep(file) == 130
    assert "Resume with: the same command" in capsys.readouterr().err
    assert sweep(file) == 0
    assert steps == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_a_run_that_fails_does_not_stop_the_others(file, tmp_path, monkeypatch, capsys):
    step = Run.step

    def failing_step(self):
        if self.recipe.seed == 0:
            raise OSError(28, "No space left on device")
        return step(self)

    monkeypatch.setattr(Run, "step", failing_step)
    with pytest.raises(SystemExit) as end:
        sweep(file)
    assert end.value.code == 1
    assert "quickdraw-seed0 failed: No space left on device" in capsys.readouterr().err
    assert (tmp_path / "runs" / "mine" / "quickdraw-seed1" / BEST).exists()


def test_a_recipe_that_cannot_be_trained_is_refused_before_the_first_run(file, tmp_path, capsys):
    file.write_text(FILE + "grid: {training.query: [2, 99999]}\n")
    assert sweep(file) == 2
    assert "99999" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_list_prints_the_folders_and_trains_nothing(file, tmp_path, capsys):
    assert sweep(file, "--list", "--out", "elsewhere") == 0
    assert capsys.readouterr().out == "elsewhere/quickdraw-seed0\nelsewhere/quickdraw-seed1\n"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere.yaml",), "There is no file nowhere.yaml"),
        (("mine.yaml", "--address", "auto"), "add --engine ray"),
        (("mine.yaml", "--engine", "ray", "--workers", "0"), "at least 1"),
    ],
)
def test_wrong_options_are_refused(file, capsys, words, said):  # noqa: ARG001
    assert sweep(*words) == 2
    assert said in capsys.readouterr().err


def test_a_sweep_with_test_scores_test_classes(file, tmp_path):
    file.write_text(FILE.replace("seeds: [0, 1]", "test: true"))
    assert sweep(file) == 0
    assert (tmp_path / "runs" / "mine" / "quickdraw" / "evaluation.json").exists()
    assert (tmp_path / "runs" / "mine" / "quickdraw" / LAST).exists()

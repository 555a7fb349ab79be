import json
import subprocess
import sys
from pathlib import Path

import pytest

from tapnet import __version__
from tapnet.checkpoint import BEST, LAST, load
from tapnet.cli import COMMANDS, main
from tapnet.methods import METHODS
from tapnet.training.run_folder import RunFolder

SMALL = [
    "backbone.options.widths=[8, 8, 8, 8]",
    "method.options.num_references=6",
    "training.way=6",
    "training.shot=1",
    "training.query=2",
    "training.episodes=4",
    "validation.episodes=10",
    "validation.every=2",
]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "small"
    assert main(["train", "quickdraw", "--out", str(folder), "--device", "cpu", "--set", *SMALL]) == 0
    return folder


def test_train_leaves_a_best_and_a_last_checkpoint(run_folder):
    assert (run_folder / BEST).is_file()
    assert (run_folder / LAST).is_file()


def test_train_writes_the_curve_for_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    out = str(tmp_path / "r")
    assert main(["train", "quickdraw", "--out", out, "--device", "cpu", "--tensorboard", "--set", *SMALL]) == 0
    events = EventAccumulator(f"{out}/tensorboard").Reload()
    assert [each.step for each in events.Scalars("validation_accuracy")] == [2, 4]


def test_train_says_what_to_do_next(tmp_path, capsys):
    main(["train", "quickdraw", "--out", str(tmp_path / "r"), "--device", "cpu", "--set", *SMALL])
    printed = capsys.readouterr().out
    assert "validation" in printed
    assert "tapnet evaluate" in printed


def test_a_trial_can_leave_the_test_classes_alone(tmp_path, capsys):
    out = tmp_path / "r"
    assert main(["train", "quickdraw", "--out", str(out), "--device", "cpu", "--no-test", "--set", *SMALL]) == 0
    printed = capsys.readouterr().out
    assert "Test classes" not in printed
    assert "--split val" in printed
    assert not (out / "evaluation.json").exists()


def test_evaluate_json_is_one_object_with_the_promised_keys(run_folder, capsys):
    assert main(["evaluate", str(run_folder), "--episodes", "20", "--json", "--device", "cpu"]) == 0
    result = json.loads(capsys.readouterr().out)
    promised = {"accuracy", "ci95", "ci95_bootstrap", "precision", "episodes", "way", "shot", "query", "seed"}
    assert promised <= result.keys()
    assert 0.2 < result["accuracy"] <= 1
    assert (result["dataset"], result["split"], result["episodes"]) == ("quickdraw", "test", 20)


def test_evaluate_prints_a_table_with_both_intervals(run_folder, capsys):
    assert main(["evaluate", str(run_folder / BEST), "--way", "6", "--shot", "1", "--episodes", "20"]) == 0
    printed = capsys.readouterr().out
    assert "6-way 1-shot" in printed
    assert printed.count("±") == 2


def test_compare_prints_the_paired_difference(run_folder, capsys):
    assert main(["compare", str(run_folder / BEST), str(run_folder / LAST), "--episodes", "10"]) == 0
    printed = capsys.readouterr().out
    assert "TapNet" in printed
    assert "difference" in printed


def test_a_table_fits_80_columns_and_breaks_names_at_hyphens(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["table", "main-omniglot-mini"]) == 0
    table = [line for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    assert max(map(len, table)) <= 80
    assert any(line.startswith("│ mini-imagenet-conv4-cpu- │") for line in table)
    assert not any("…" in line for line in table)


def test_recipes_lists_the_quickstart(capsys):
    assert main(["recipes"]) == 0
    assert "quickdraw" in capsys.readouterr().out


def test_quickstart_ends_with_a_table_and_two_pictures(tmp_path, capsys):
    out = tmp_path / "quick"
    small = [change for change in SMALL if "num_references" not in change and "training.way" not in change]
    arguments = ["quickstart", "--out", str(out), "--device", "cpu", "--set", *small]
    arguments += ["method.options.num_references=20", "training.way=20"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    for task in ("5-way 1-shot", "5-way 5-shot", "20-way 1-shot", "20-way 5-shot"):
        assert task in printed
    for picture in ("learning-curve.png", "projection.png"):
        assert (out / picture).stat().st_size > 10_000


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "usage: tapnet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "Give a recipe to start a run"),
        (["train", "nothing"], "no recipe file 'nothing'"),
        (
            ["train", "quickdraw", "--set", "training.episodes=-1"],
            "train: --set training.episodes=-1: `training.episodes`",
        ),
        (
            ["train", "quickdraw", "--set", "training.epsiodes=9"],
            "not a key of a recipe (did you mean `training.episodes`?)",
        ),
        (["train", "quickdraw", "--set", "trainig.shot=1", "seed=3"], "--set trainig.shot=1: `trainig` is not a key"),
        (
            ["train", "quickdraw", "--set", "training.way=7"],
            "--set training.way=7: training.way and method.options.ways need to be one number",
        ),
        (["train", "quickdraw", "--set", "seed=[1"], "--set seed=[1: the value is not YAML"),
        (["train", "quickdraw", "--set", "data.name=imagenet"], "'imagenet'"),
        (["train", "--resume", "nowhere"], "There is no run in nowhere to go on with"),
        (["train", "quickdraw", "--device", "cuda:9"], "is not on this machine"),
        (["train", "quickdraw", "--precision", "int4"], "auto, float32, bf16, got 'int4'"),
        (["evaluate", "nowhere.safetensors"], "no checkpoint nowhere.safetensors"),
        (["compare", "one"], "at least 2 checkpoints, got 1"),
    ],
)
def test_a_mistake_ends_in_one_sentence_and_exit_code_2(arguments, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--way", "7"], "7 classes need 7 references, there are 6"),
        (["--shot", "90", "--query", "11"], "need 101 images a class"),
        (["--split", "exam"], "exam"),
        (["--episodes", "0"], "at least 2 episodes"),
    ],
)
def test_evaluate_refuses_what_it_cannot_measure(run_folder, arguments, words, capsys):
    assert main(["evaluate", str(run_folder), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_mistake_in_a_recipe_comes_before_anything_is_printed(capsys, tmp_path):
    assert main(["train", "quickdraw", "--out", str(tmp_path / "r"), "--set", "data.name=nothing"]) == 2
    assert capsys.readouterr().out == ""


def test_train_says_why_test_classes_were_not_evaluated(run_folder, monkeypatch):
    import torch

    from tapnet.cli.train import _final_evaluation
    from tapnet.data.packed import UnknownSplitError
    from tapnet.recipe import load_recipe

    class Here:
        device = torch.device("cpu")

    def no_test_classes(*_, **__):
        raise UnknownSplitError("it has none.")

    def broken(*_, **__):
        raise ValueError("it cannot be read")

    many = [*SMALL, "validation.shot=99"]
    assert "Not evaluated on test classes: 99-shot" in _final_evaluation(
        load_recipe("quickdraw", many), run_folder, Here()
    )
    monkeypatch.setattr("tapnet.recipe.load_dataset", no_test_classes)
    recipe = load_recipe("quickdraw", SMALL)
    assert _final_evaluation(recipe, run_folder, Here()) == "Not evaluated on test classes: it has none.\n"
    monkeypatch.setattr("tapnet.recipe.load_dataset", broken)
    with pytest.raises(ValueError, match="it cannot be read"):
        _final_evaluation(recipe, run_folder, Here())


def test_an_unknown_option_shows_the_usage_of_its_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", "drawings", "--shoot", "3"])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.startswith("usage: tapnet evaluate")
    assert "unrecognized arguments: --shoot 3" in error


def test_evaluate_refuses_images_of_another_size(blobs, monkeypatch, capsys):
    monkeypatch.setattr("tapnet.recipe.load_dataset", lambda *_, **__: blobs)
    assert main(["evaluate", "drawings", "--dataset", "blobs"]) == 2
    error = capsys.readouterr().err
    assert "drawings takes images of 28×28 with 1 channel, those of blobs are 8×8 with 1 channel:" in error


def test_compare_json_is_one_object_with_paired_differences(run_folder, capsys):
    assert main(["compare", str(run_folder / BEST), str(run_folder / LAST), "--episodes", "10", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    first, second = result["checkpoints"]
    assert first["difference"] == 0
    assert second["difference"] == pytest.approx(second["accuracy"] - first["accuracy"])
    assert (result["dataset"], result["episodes"], first["allow_overlap"]) == ("quickdraw", 10, False)
    assert (result["classes"], result["precision"], len(result["data_sha256"])) == (60, "float32", 64)


def test_overlap_with_pretraining_stands_in_the_table_and_in_what_is_recorded(
    run_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("tapnet.cli.evaluate.overlaps", lambda *_: True)
    monkeypatch.setattr("tapnet.cli.compare.overlaps", lambda *_: True)
    few = ["--episodes", "4", "--allow-overlap"]
    assert main(["evaluate", str(run_folder), *few, "--record", str(tmp_path)]) == 0
    assert "on which its backbone was pretrained" in capsys.readouterr().out
    (kept,) = tmp_path.glob("*.json")
    assert json.loads(kept.read_text())["evaluation"]["allow_overlap"] is True
    assert main(["compare", str(run_folder), str(run_folder / LAST), *few]) == 0
    assert "on which its backbone was pretrained" in capsys.readouterr().out


def test_help_and_version_do_not_import_torch():
    code = (
        "import sys; from tapnet.cli import main\n"
        "try: main(['--version'])\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["tapnet", __version__, "False"]


def test_ctrl_c_says_where_the_state_is_and_how_to_go_on(tmp_path, monkeypatch, capsys):
    import os
    import signal

    from tapnet.training import Run

    step = Run.step

    def interrupted_step(self):
        os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    monkeypatch.setattr(Run, "step", interrupted_step)
    folder = tmp_path / "run"
    assert main(["train", "quickdraw", "--out", str(folder), "--device", "cpu", "--set", *SMALL]) == 130
    message = capsys.readouterr().err
    assert str(folder / LAST) in message
    assert f"tapnet train --resume {folder}" in message
    monkeypatch.undo()
    assert main(["train", "--resume", str(folder), "--device", "cpu"]) == 0
    monkeypatch.setattr(Run, "step", None)  # a step would fail
    capsys.readouterr()
    assert main(["train", "--resume", str(folder), "--device", "cpu"]) == 0
    assert f"{folder} is finished" in capsys.readouterr().out


def test_a_finished_run_goes_on_beyond_its_end_or_says_why_not(tmp_path, capsys):
    folder = str(tmp_path / "run")
    assert main(["train", "quickdraw", "--out", folder, "--device", "cpu", "--set", *SMALL]) == 0
    assert main(["train", "--resume", folder, "--device", "cpu", "--set", "training.learning_rate=1"]) == 2
    assert "training.learning_rate from 0.004 to 1.0" in capsys.readouterr().err
    length = ["training.episodes=8", "training.cycles=2"]
    assert main(["train", "--resume", folder, "--device", "cpu", "--set", *length]) == 0
    assert RunFolder(tmp_path / "run").newest().header.episode == 8


def test_a_run_goes_on_in_its_own_precision(tmp_path):
    folder = str(tmp_path / "run")
    assert main(["train", "quickdraw", "--out", folder, "--device", "cpu", "--precision", "bf16", "--set", *SMALL]) == 0
    length = ["training.episodes=8", "training.cycles=2"]
    assert main(["train", "--resume", folder, "--device", "cpu", "--set", *length]) == 0
    assert RunFolder(tmp_path / "run").facts()["resumed"][0]["hardware"]["precision"] == "bf16"


def test_python_m_tapnet_is_the_command_line():
    done = subprocess.run([sys.executable, "-m", "tapnet", "recipes"], capture_output=True, text=True, check=True)
    assert "quickdraw" in done.stdout


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("TAPNET_DEBUG", "1")
    with pytest.raises(FileNotFoundError):
        main(["evaluate", str(Path("nowhere"))])


def test_evaluate_says_when_the_classes_were_trained_on(run_folder, capsys):
    assert main(["evaluate", str(run_folder), "--split", "train", "--episodes", "4"]) == 0
    assert "was trained on these classes" in capsys.readouterr().err


def test_train_takes_another_method_than_the_recipes(tmp_path, capsys):
    small = [change for change in SMALL if "num_references" not in change]
    run = tmp_path / "run"
    arguments = ["train", "quickdraw", "--method", "matching", "--out", str(run), "--device", "cpu", "--no-test"]
    assert main([*arguments, "--set", *small]) == 0
    assert "quickdraw-matching: matching with conv4" in capsys.readouterr().out
    assert type(load(run)) is METHODS["matching"]


def test_train_does_not_resume_with_another_method(tmp_path, capsys):
    assert main(["train", "--resume", str(tmp_path), "--method", "matching"]) == 2
    assert "--method" in capsys.readouterr().err

"""The command line as a whole, and its commands for training and evaluation."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from tapnet import __version__
from tapnet.checkpoint import load
from tapnet.cli import COMMANDS, evaluate, main, runs
from tapnet.errors import NotFoundError, UserError
from tapnet.evaluation.candidates import ClassOverlap
from tapnet.methods import METHODS
from tapnet.paths import BEST, LAST
from tapnet.training import Run
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


def train(out, *options, changes=SMALL):
    return main(["train", "quickdraw", "--out", str(out), "--device", "cpu", *options, "--set", *changes])


@pytest.fixture(scope="module", autouse=True)
def _short_final_evaluation():
    """Few test episodes at the end of training: the accuracy itself is no claim here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tapnet.training.outcome.FINAL_EPISODES", 4)
        patch.setattr("tapnet.evaluation.evaluator.REPLICATES", 4)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run and the lines that training has printed on a narrow terminal."""
    printed = StringIO()
    folder = tmp_path_factory.mktemp("a-rather-long-name-of-a-folder-that-no-terminal-shows-in-one-line") / "small"
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(printed):
        patch.setenv("COLUMNS", "50")
        assert train(folder, "--tensorboard") == 0
    return folder, printed.getvalue().splitlines()


@pytest.fixture(scope="module")
def run_folder(trained):
    return trained[0]


@pytest.fixture(scope="module")
def two_seeds(run_folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("runs") / "seed1"
    assert train(other, changes=[*SMALL, "seed=1"]) == 0
    return str(run_folder), str(other)


@pytest.fixture
def interrupted_steps(monkeypatch):
    """Ctrl-C in the first step of training, until `monkeypatch.undo`."""
    step = Run.step

    def interrupted_step(self):
        os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    monkeypatch.setattr(Run, "step", interrupted_step)


def json_of(capsys, *arguments):
    """What a command prints as JSON."""
    capsys.readouterr()
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_train_leaves_checkpoints_and_says_what_to_do_next_in_whole_lines(trained):
    folder, lines = trained
    assert (folder / LAST).is_file()
    assert re.match(r"quickdraw: tapnet with conv4 on quickdraw, .* per class$", lines[0])
    assert any("validation" in line for line in lines)
    assert any(line.startswith("Test classes, 5-way 5-shot: ") for line in lines)
    assert lines[-2:] == [f"Best checkpoint: {folder / BEST}", f"Try: tapnet evaluate {folder}"]


def test_train_writes_the_curve_for_tensorboard(run_folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_folder / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("validation_accuracy")] == [0, 2, 4]


def test_train_of_another_method_as_a_trial_leaves_the_test_classes_alone(tmp_path, capsys):
    small = [change for change in SMALL if "num_references" not in change]
    assert train(tmp_path / "r", "--method", "matching", "--no-test", changes=small) == 0
    printed = capsys.readouterr().out
    assert "quickdraw-matching: matching with conv4" in printed
    assert "Test classes" not in printed
    assert "--split val" in printed
    assert not (tmp_path / "r" / "evaluation.json").exists()
    assert type(load(tmp_path / "r")) is METHODS["matching"]


def test_classes_that_are_not_unseen_are_named_by_train_and_evaluate(tmp_path, run_folder, capsys):
    folder = tmp_path / "r"
    assert train(folder, changes=[*SMALL, "validation.split=test", "data.train_split=trainval"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "WARNING: validation uses test classes" in printed
    assert "no test result. Test classes were used by validation (validation.split=test)" in printed
    assert not (folder / "evaluation.json").exists()
    for arguments, key, words in (
        ([folder], "validated_on", "Its checkpoint was chosen on 60 of these 60 classes"),
        ([folder, "--split", "val"], "trained_on", "It was trained on"),
        ([run_folder, "--split", "train"], "trained_on", "not one on unseen classes"),
    ):
        assert main(["evaluate", *map(str, arguments), "--episodes", "4", "--json"]) == 0
        shown = capsys.readouterr()
        (result,) = json.loads(shown.out)["results"]
        assert result[key] == result["classes"]
        assert words in shown.err
    overlap = ClassOverlap(20, trained_on=20, validated_on=5, pretrained_on=False)
    assert evaluate._note(overlap) == ", trained on 20 of them, chosen by 5 of them"


def test_train_does_not_overwrite_an_imported_network(tmp_path, capsys):
    (tmp_path / BEST).write_bytes(b"network")
    assert train(tmp_path) == 2
    assert f"{tmp_path} already holds a network, {BEST}: choose another folder. (--out)" in capsys.readouterr().err
    assert (tmp_path / BEST).read_bytes() == b"network"


@pytest.mark.usefixtures("interrupted_steps")
@pytest.mark.parametrize("trial", [["--no-test"], []])
def test_ctrl_c_says_where_the_state_is_and_how_to_resume(trial, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    assert train(folder, *trial) == 130
    message = capsys.readouterr().err
    assert str(folder / LAST) in message
    assert message.rstrip().endswith(" ".join([f"tapnet train --resume {folder}", *trial]))
    monkeypatch.undo()
    assert main(["train", "--resume", str(folder), "--device", "cpu"]) == 0
    monkeypatch.setattr(Run, "step", None)  # a step would fail
    capsys.readouterr()
    assert main(["train", "--resume", str(folder), "--device", "cpu"]) == 0
    assert f"{folder} is finished" in capsys.readouterr().out


def test_a_finished_run_continues_in_its_own_precision_or_says_why_not(tmp_path, capsys):
    folder = tmp_path / "run"
    assert train(folder, "--precision", "bf16") == 0
    resume = ["train", "--resume", str(folder), "--device", "cpu", "--set"]
    assert main([*resume, "training.learning_rate=1"]) == 2
    assert "training.learning_rate from 0.004 to 1.0" in capsys.readouterr().err
    assert main([*resume, "training.episodes=8", "training.cycles=2"]) == 0
    assert RunFolder(folder).newest().header.episode == 8
    assert RunFolder(folder).metadata()["resumed"][0]["hardware"]["precision"] == "bf16"


def test_quickstart_ends_with_a_table_and_two_plots(tmp_path, capsys):
    small = [change for change in SMALL if "num_references" not in change and "training.way" not in change]
    small += ["method.options.num_references=20", "training.way=20"]
    assert main(["quickstart", "--out", str(tmp_path), "--device", "cpu", "--set", *small]) == 0
    printed = capsys.readouterr().out
    assert all(task in printed for task in ("5-way 1-shot", "5-way 5-shot", "20-way 1-shot", "20-way 5-shot"))
    for plot in ("learning-curve.png", "projection.png"):
        assert (tmp_path / plot).stat().st_size > 10_000


def test_evaluate_json_has_every_task_with_the_promised_keys(run_folder, capsys):
    result = json_of(capsys, "evaluate", run_folder, "--way", "3,6", "--shot", "1,2", "--episodes", 20)
    assert [(row["way"], row["shot"]) for row in result["results"]] == [(3, 1), (3, 2), (6, 1), (6, 2)]
    first = result["results"][0]
    promised = {"accuracy", "ci95", "ci95_bootstrap", "precision", "episodes", "way", "shot", "query", "seed"}
    assert promised <= first.keys()
    assert 0.2 < first["accuracy"] <= 1
    assert (first["dataset"], first["split"], first["episodes"]) == ("quickdraw", "test", 20)
    result = json_of(capsys, "evaluate", run_folder, "--episodes", 4, "--no-class-interval")
    assert result["results"][0]["ci95_bootstrap"] is None
    assert json_of(capsys, "evaluate", "drawings", "--episodes", 20, "--split", "val")["results"][0]["accuracy"] > 0.7
    assert main(["evaluate", str(run_folder), "--way", "7"]) == 2
    assert "7 classes need 7 references, there are 6" in capsys.readouterr().err


def test_evaluate_prints_a_table_with_both_intervals_and_writes_it(run_folder, tmp_path, capsys):
    out = tmp_path / "new" / "accuracies.csv"
    asked = ["--way", "6", "--shot", "1", "--episodes", "20", "--out", str(out)]
    assert main(["evaluate", str(run_folder / BEST), *asked]) == 0
    printed = capsys.readouterr()
    assert "6-way 1-shot" in printed.out
    assert printed.out.count("±") + printed.out.count("not resolvable (") == 2
    assert printed.err.splitlines()[-1] == f"Wrote {out}"
    assert out.read_text().startswith("checkpoint,task,accuracy,over episodes,")


def test_evaluate_of_seeds_tells_their_spread_apart_from_that_of_episodes(two_seeds, tmp_path, capsys):
    result = json_of(capsys, "evaluate", *two_seeds, "--seeds", "--episodes", 20)
    (spread,), accuracies = result["over_seeds"], [row["accuracy"] for row in result["results"]]
    assert spread["seeds"] == [0, 1]
    assert spread["accuracy"] == pytest.approx(sum(accuracies) / 2)
    assert spread["seed_deviation"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert spread["ci95"] != spread["seed_ci95"]
    assert main(["evaluate", *two_seeds, "--seeds", "--episodes", "4"]) == 0
    assert "Mean of 2 runs with other seeds:" in capsys.readouterr().out
    assert main(["evaluate", two_seeds[0], two_seeds[0], "--seeds"]) == 2
    assert "one run per seed, got the seeds 0, 0" in capsys.readouterr().err
    assert train(tmp_path / "other", changes=[*SMALL, "training.learning_rate=0.1"]) == 0
    assert main(["evaluate", two_seeds[0], str(tmp_path / "other"), "--seeds"]) == 2
    assert "differ in seed only" in capsys.readouterr().err


def test_compare_groups_seeds_and_pairs_differences(two_seeds, tmp_path, capsys):
    last = str(Path(two_seeds[0]) / LAST)
    result = json_of(capsys, "compare", two_seeds[0], last, "--episodes", 10)
    first, second = result["checkpoints"]
    assert first["difference"] == 0
    assert second["difference"] == pytest.approx(second["accuracy"] - first["accuracy"])
    assert (result["dataset"], result["episodes"], first["allow_overlap"]) == ("quickdraw", 10, False)
    assert (result["classes"], result["precision"], len(result["data_sha256"])) == (60, "float32", 64)
    result = json_of(capsys, "compare", *two_seeds, last, "--episodes", 20, "--no-class-interval")
    assert [group["seeds"] for group in result["groups"]] == [[0, 1], [0]]
    assert (result["correction"], len(result["pairs"])) == ("Holm", 1)
    assert result["checkpoints"][0]["extra_parameters"] == 6 * 32
    assert result["checkpoints"][0]["training_seconds"] > 0
    for ending in ("md", "html"):
        path = tmp_path / f"report.{ending}"
        assert main(["compare", *two_seeds, last, "--episodes", "10", "--out", str(path)]) == 0
        printed = capsys.readouterr()
        assert "difference" in printed.out
        assert f"Wrote {path}" in printed.err.splitlines()
        assert "over classes" in path.read_text()


def test_overlap_with_pretraining_stands_in_the_table(run_folder, monkeypatch, capsys):
    assert main(["evaluate", "photos-fast", "--dataset", "mini-imagenet"]) == 2
    assert "and the result says so. (--allow-overlap)" in capsys.readouterr().err
    monkeypatch.setattr("tapnet.evaluation.candidates.pretrained_on", lambda *_: True)
    for command in (["evaluate", run_folder], ["compare", run_folder, run_folder / LAST]):
        assert main([*map(str, command), "--episodes", "4", "--allow-overlap"]) == 0
        assert "on which its backbone was pretrained" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["compare", "evaluate"])
def test_every_checkpoint_is_read_before_the_first_is_evaluated(command, monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "candidate", None)
    assert main([command, "drawings", "nowhere"]) == 2
    assert "There is no checkpoint nowhere" in capsys.readouterr().err


def test_runs_lists_runs_and_says_why_it_cannot_read_one(run_folder, tmp_path, monkeypatch, capsys):
    (run,) = json_of(capsys, "runs", run_folder.parent)
    assert (run["folder"], run["state"], run["episode"]) == (str(run_folder), "finished", 4)
    monkeypatch.chdir(tmp_path)
    header = json.loads(safe_open(run_folder / LAST, framework="np").metadata()["tapnet"])
    header["recipe"]["training"]["warp_drive"] = 9
    for name in ("newer", "junk"):
        (tmp_path / name).mkdir()
    save_file({"a": np.zeros(1)}, tmp_path / "newer" / LAST, {"tapnet": json.dumps(header)})
    (tmp_path / "junk" / LAST).write_bytes(b"junk")
    assert [run["state"] for run in json_of(capsys, "runs", ".")] == ["unreadable", "unreadable"]
    assert main(["runs", "."]) == 0
    printed = capsys.readouterr()
    assert "0/" not in printed.out
    assert "`training.warp_drive` is not a key of a recipe" in printed.err


def test_recipes_are_listed_by_dataset_and_tapnet_first(capsys):
    assert main(["recipes"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names[:3] == ["quickdraw", "quickdraw", "quickdraw-60way"]
    in_order = ["omniglot", "omniglot-1shot", "omniglot-cpu", "omniglot-cpu-long", "omniglot-maml-cpu", "mini-imagenet"]
    assert [name for name in names if name in in_order] == in_order
    assert len(names) == len({*names}) + 2  # two datasets have a recipe of their name


@pytest.mark.parametrize("name", ["main-omniglot-mini", "network-sizes", "rivals"])
def test_a_table_without_recorded_results_has_the_published_rows_alone(name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["table", name]) == 0
    printed = capsys.readouterr()
    assert "tapnet train" not in printed.out
    assert "ours" not in "".join(line for line in printed.out.splitlines() if line.startswith("│"))
    assert "│ TapNet" in printed.out
    assert "There is no folder results here, so ours are left out: give that of a checkout as --results." in printed.err


def test_a_command_without_a_name_lists_what_there_is(capsys):
    from tapnet.paper.tables import TABLES

    assert main(["ablate"]) == 0
    assert {"selection", "episode-composition"} <= {line.split()[0] for line in capsys.readouterr().out.splitlines()}
    for command, names in (("table", {*TABLES}), ("figure", {"projection", "rivals"})):
        assert main([command]) == 0
        printed = capsys.readouterr().out
        assert f"{command}s:" in printed
        listed = {line.split()[0] for line in printed.splitlines() if line.startswith("  ")}
        assert listed == names if command == "table" else names <= listed


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "usage: tapnet" in capsys.readouterr().out


@pytest.mark.parametrize("error", [UserError("Give 2."), NotFoundError("Give 2."), OSError("Give 2."), KeyError(3)])
def test_a_mistake_is_one_sentence_and_a_bug_or_debugging_shows_a_traceback(error, monkeypatch, capsys):
    def fail(_):
        raise error

    monkeypatch.setattr(runs, "run_recipes", fail)
    if not isinstance(error, KeyError):
        assert main(["recipes"]) == 2
        assert capsys.readouterr().err == "tapnet recipes: Give 2.\n"
        monkeypatch.setenv("TAPNET_DEBUG", "1")
    with pytest.raises(type(error)):
        main(["recipes"])


@pytest.mark.parametrize("redirection", ["| head -n 1", ">&-"])
def test_output_that_is_closed_is_no_error(redirection):
    command = f"{sys.executable} -m tapnet recipes {redirection}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == ("quickdraw\n" if "head" in redirection else "")


@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("--version", 0),
        ("fit nowhere --out a.task", 2),
        ("predict nowhere.task .", 2),
        ("remove nowhere.task .", 2),
        ("table nosuch", 2),
        ("serve --port 99999999", 2),
        ("figure projection nowhere", 2),
        ("compare nowhere drawings", 2),
    ],
)
def test_help_version_and_cheap_checks_come_before_pytorch(command, code, tmp_path):
    program = (
        "import sys\n"
        "from tapnet.cli import main\n"
        "try: done = main(sys.argv[1:])\n"
        "except SystemExit as stop: done = stop.code\n"
        "print(done, 'torch' in sys.modules)"
    )
    words = [sys.executable, "-c", program, *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert lines[-1] == f"{code} False", done.stderr
    assert lines[:-1] == ([f"tapnet {__version__}"] if code == 0 else [])

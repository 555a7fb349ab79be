import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from tapnet import __version__
from tapnet.checkpoint import load
from tapnet.cli import COMMANDS, evaluate, main
from tapnet.cli.output import print_prose, print_table
from tapnet.evaluation.candidates import ClassOverlap
from tapnet.methods import METHODS
from tapnet.paths import BEST, LAST
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


@pytest.fixture(scope="module", autouse=True)
def _short_final_evaluation():
    """Few test episodes at the end of training: the accuracy itself is no claim here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tapnet.training.outcome.FINAL_EPISODES", 4)
        patch.setattr("tapnet.evaluation.evaluator.REPLICATES", 4)
        yield


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
    assert [each.step for each in events.Scalars("validation_accuracy")] == [0, 2, 4]


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
    (result,) = json.loads(capsys.readouterr().out)["results"]
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
    assert "tapnet" in printed
    assert "difference" in printed


def test_a_table_fits_80_columns_and_breaks_names_at_hyphens(capsys, monkeypatch, tmp_path):
    (tmp_path / "results").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["table", "network-sizes"]) == 0
    printed = re.sub(r"\x1b\[\d+m", "", capsys.readouterr().out)  # bold
    table = [line for line in printed.splitlines() if line.startswith("│")]
    assert max(map(len, table)) <= 80
    assert any(line.startswith("│ mini-imagenet-") for line in table)
    assert not any("…" in line for line in table)


@pytest.mark.parametrize("columns", ["50", "200"])
def test_a_table_and_prose_in_a_pipe_are_not_folded(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    name, text = "a name of several words that is wider than a narrow terminal", "Prose of many words. " * 20
    print_table(("name", "value"), [(name, "1.00%")])
    print_prose(text, indent=2)
    table, prose = capsys.readouterr().out.rsplit("┘\n", 1)
    assert f"│ {name} │ 1.00% │" in table
    assert prose == f"  {text}\n"


def test_prose_is_wrapped_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_prose("words [of many kinds] " * 20, indent=2)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 1
    assert all(line.startswith("  ") and len(line) <= 50 for line in lines)
    assert "[of" in lines[0]


@pytest.mark.parametrize("name", ["main-omniglot-mini", "network-sizes", "rivals"])
def test_a_table_without_recorded_results_has_the_published_rows_alone(name, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["table", name]) == 0
    printed = capsys.readouterr()
    assert "not run" not in printed.out.lower()
    assert "tapnet train" not in printed.out
    assert "ours" not in "".join(line for line in printed.out.splitlines() if line.startswith("│"))
    assert "│ TapNet" in printed.out
    assert "ours are left out: give that of a checkout as --results." in printed.err


@pytest.mark.parametrize("command", [["evaluate", "photos"], ["compare", "photos", "photos-fast"]])
def test_a_network_of_no_dataset_asks_for_one_to_be_evaluated_on(command, capsys):
    assert main(command) == 2
    error = capsys.readouterr().err
    assert "There is no dataset 'photos' here: choose one of quickdraw, " in error
    assert error.rstrip().endswith("(--dataset)")


def test_recipes_are_listed_by_dataset_and_tapnet_first(capsys):
    assert main(["recipes"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names[:3] == ["quickdraw", "quickdraw", "quickdraw-60way"]
    in_order = ["omniglot", "omniglot-1shot", "omniglot-cpu", "omniglot-cpu-long", "omniglot-maml-cpu", "mini-imagenet"]
    assert [name for name in names if name in in_order] == in_order
    assert len(names) == len({*names}) + 2  # two datasets have a recipe of their name


def test_table_without_recorded_results_says_so(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["table", "parameters"]) == 0
    assert "There is no folder results here" in capsys.readouterr().err


def test_list_of_tables_names_every_table(capsys):
    from tapnet.paper.tables import TABLES

    assert main(["table"]) == 0
    listed = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("  ")}
    assert listed == {*TABLES}


@pytest.mark.parametrize("command", ["compare", "evaluate"])
def test_every_checkpoint_is_read_before_the_first_is_evaluated(command, monkeypatch, capsys):
    monkeypatch.setattr(evaluate, "candidate", None)
    assert main([command, "drawings", "nowhere"]) == 2
    assert "There is no checkpoint nowhere" in capsys.readouterr().err


def test_quickstart_ends_with_a_table_and_two_plots(tmp_path, capsys):
    out = tmp_path / "quick"
    small = [change for change in SMALL if "num_references" not in change and "training.way" not in change]
    arguments = ["quickstart", "--out", str(out), "--device", "cpu", "--set", *small]
    arguments += ["method.options.num_references=20", "training.way=20"]
    assert main(arguments) == 0
    printed = capsys.readouterr().out
    for task in ("5-way 1-shot", "5-way 5-shot", "20-way 1-shot", "20-way 5-shot"):
        assert task in printed
    for plot in ("learning-curve.png", "projection.png"):
        assert (out / plot).stat().st_size > 10_000


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, capsys):
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert "usage: tapnet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], "Expected a recipe to start a run"),
        (["train", "nothing"], "no recipe file 'nothing'"),
        (
            ["train", "quickdraw", "--set", "training.episodes=-1"],
            "train: training.episodes=-1: `training.episodes`",
        ),
        (
            ["train", "quickdraw", "--set", "training.epsiodes=9"],
            "not a key of a recipe (did you mean `training.episodes`?)",
        ),
        (["train", "quickdraw", "--set", "trainig.shot=1", "seed=3"], "trainig.shot=1: `trainig` is not a key"),
        (
            ["train", "quickdraw", "--set", "training.way=7"],
            "training.way=7: training.way and method.options.num_references need",
        ),
        (["train", "quickdraw", "--set", "seed=[1"], "seed=[1: the value is not YAML"),
        (["train", "quickdraw", "--set", "data.name=imagenet"], "'imagenet'"),
        (["train", "--resume", "nowhere"], "There is no run in nowhere to resume"),
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
        (["--shot", "90", "--query", "11"], "need 101 images per class"),
        (["--split", "exam"], "exam"),
        (["--episodes", "0"], "Episodes need episodes >= 1"),
        (["--episodes", "1"], "2 to 1,000,000,000 episodes"),
    ],
)
def test_evaluate_refuses_what_it_cannot_measure(run_folder, arguments, words, capsys):
    assert main(["evaluate", str(run_folder), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_a_mistake_in_a_recipe_comes_before_anything_is_printed(capsys, tmp_path):
    assert main(["train", "quickdraw", "--out", str(tmp_path / "r"), "--set", "data.name=nothing"]) == 2
    assert capsys.readouterr().out == ""


def train_on(out, *changes):
    return main(["train", "quickdraw", "--out", str(out), "--device", "cpu", "--set", *SMALL, *changes])


def test_train_with_validation_on_test_classes_warns_and_gives_no_test_accuracy(tmp_path, capsys):
    assert train_on(tmp_path / "r", "validation.split=test") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "WARNING: validation uses test classes" in printed
    assert "no test result. Test classes were used by validation (validation.split=test)" in printed
    assert "Test classes, " not in printed
    assert not (tmp_path / "r" / "evaluation.json").exists()


def test_evaluate_says_when_test_classes_chose_the_checkpoint(tmp_path, capsys):
    assert train_on(tmp_path / "r", "validation.split=test") == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "r"), "--episodes", "4", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["results"][0]["validated_on"] == 60
    assert "Its checkpoint was chosen on 60 of these 60 classes" in printed.err


def test_evaluate_of_a_trainval_network_on_validation_classes_says_that_they_were_trained_on(tmp_path, capsys):
    assert train_on(tmp_path / "r", "data.train_split=trainval") == 0
    capsys.readouterr()
    assert main(["evaluate", str(tmp_path / "r"), "--split", "val", "--episodes", "4", "--json"]) == 0
    printed = capsys.readouterr()
    (result,) = json.loads(printed.out)["results"]
    assert result["trained_on"] == result["classes"]
    assert "It was trained on" in printed.err
    assert "not one on unseen classes" in printed.err


def test_the_printed_line_says_how_many_classes_are_not_unseen():
    overlap = ClassOverlap(20, trained_on=20, validated_on=5, pretrained_on=False)
    assert evaluate._note(overlap) == ", trained on 20 of them, chosen by 5 of them"


def test_train_does_not_overwrite_an_imported_network(run_folder, tmp_path, capsys):
    out = tmp_path / "imported"
    out.mkdir()
    network = (run_folder / BEST).read_bytes()
    (out / BEST).write_bytes(network)
    assert train_on(out) == 2
    assert f"{out} already holds a network, {BEST}: choose another folder. (--out)" in capsys.readouterr().err
    assert (out / BEST).read_bytes() == network


@pytest.mark.parametrize("columns", ["50", "200"])
def test_commands_and_paths_are_printed_on_one_line_at_any_width(tmp_path, columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    out = tmp_path / "a-rather-long-name-of-a-folder-that-no-terminal-shows-in-one-line" / "run"
    assert train_on(out) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"Try: tapnet evaluate {out}" in lines
    assert f"Best checkpoint: {out / BEST}" in lines


def test_evaluate_takes_several_ways_and_shots(run_folder, capsys):
    assert main(["evaluate", str(run_folder), "--way", "3,6", "--shot", "1,2", "--episodes", "4", "--json"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    assert [(each["way"], each["shot"]) for each in results] == [(3, 1), (3, 2), (6, 1), (6, 2)]


@pytest.fixture(scope="module")
def two_seeds(run_folder, tmp_path_factory):
    other = tmp_path_factory.mktemp("runs") / "seed1"
    assert train_on(other, "seed=1") == 0
    return str(run_folder), str(other)


def test_evaluate_of_seeds_tells_their_spread_apart_from_that_of_episodes(two_seeds, capsys):
    assert main(["evaluate", *two_seeds, "--seeds", "--episodes", "20", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    (spread,), accuracies = result["over_seeds"], [each["accuracy"] for each in result["results"]]
    assert spread["seeds"] == [0, 1]
    assert spread["accuracy"] == pytest.approx(sum(accuracies) / 2)
    assert spread["seed_deviation"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert spread["ci95"] != spread["seed_ci95"]


def test_evaluate_of_seeds_prints_both(two_seeds, capsys):
    assert main(["evaluate", *two_seeds, "--seeds", "--episodes", "4"]) == 0
    assert "Mean of 2 runs with other seeds:" in capsys.readouterr().out


def test_evaluate_of_seeds_refuses_other_recipes_and_the_same_seed(two_seeds, tmp_path, capsys):
    assert train_on(tmp_path / "other", "training.learning_rate=0.1") == 0
    assert main(["evaluate", two_seeds[0], str(tmp_path / "other"), "--seeds"]) == 2
    assert "differ in seed only" in capsys.readouterr().err
    assert main(["evaluate", two_seeds[0], two_seeds[0], "--seeds"]) == 2
    assert "one run per seed, got the seeds 0, 0" in capsys.readouterr().err


def test_compare_groups_seeds_and_corrects_for_the_number_of_pairs(two_seeds, capsys):
    last = str(Path(two_seeds[0]) / LAST)
    assert main(["compare", *two_seeds, last, "--episodes", "20", "--json", "--no-class-interval"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [group["seeds"] for group in result["groups"]] == [[0, 1], [0]]
    assert result["correction"] == "Holm"
    assert len(result["pairs"]) == 1
    assert result["checkpoints"][0]["extra_parameters"] == 6 * 32
    assert result["checkpoints"][0]["training_seconds"] > 0


@pytest.mark.parametrize("ending", ["md", "html"])
def test_compare_writes_a_report(two_seeds, ending, tmp_path, capsys):
    path = tmp_path / f"report.{ending}"
    assert main(["compare", *two_seeds, "--episodes", "10", "--out", str(path)]) == 0
    assert f"Wrote {path}" in capsys.readouterr().err.splitlines()
    assert "over classes" in path.read_text()


def test_runs_lists_runs_as_json(run_folder, capsys):
    assert main(["runs", str(run_folder.parent), "--json"]) == 0
    (run,) = json.loads(capsys.readouterr().out)
    assert (run["folder"], run["state"], run["episode"]) == (str(run_folder), "finished", 4)


@pytest.mark.parametrize("command", ["table", "figure"])
def test_a_command_without_a_name_lists_what_there_is(command, capsys):
    assert main([command]) == 0
    assert f"{command}s:" in capsys.readouterr().out


def test_output_into_a_closed_pipe_ends_quietly():
    command = f"{sys.executable} -m tapnet recipes | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


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
    monkeypatch.setattr("tapnet.evaluation.candidates.pretrained_on", lambda *_: True)
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


@pytest.fixture
def interrupted_steps(monkeypatch):
    """Ctrl-C in the first step of training, until `monkeypatch.undo`."""
    import os
    import signal

    from tapnet.training import Run

    step = Run.step

    def interrupted_step(self):
        os.kill(os.getpid(), signal.SIGINT)
        return step(self)

    monkeypatch.setattr(Run, "step", interrupted_step)


@pytest.mark.usefixtures("interrupted_steps")
def test_the_command_that_resumes_a_trial_does_not_score_test_classes(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["train", "quickdraw", "--out", str(folder), "--no-test", "--device", "cpu", "--set", *SMALL]) == 130
    assert f"tapnet train --resume {folder} --no-test" in capsys.readouterr().err


@pytest.mark.usefixtures("interrupted_steps")
def test_ctrl_c_says_where_the_state_is_and_how_to_resume(tmp_path, monkeypatch, capsys):
    from tapnet.training import Run

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


def test_a_finished_run_continues_beyond_its_end_or_says_why_not(tmp_path, capsys):
    folder = str(tmp_path / "run")
    assert main(["train", "quickdraw", "--out", folder, "--device", "cpu", "--set", *SMALL]) == 0
    assert main(["train", "--resume", folder, "--device", "cpu", "--set", "training.learning_rate=1"]) == 2
    assert "training.learning_rate from 0.004 to 1.0" in capsys.readouterr().err
    length = ["training.episodes=8", "training.cycles=2"]
    assert main(["train", "--resume", folder, "--device", "cpu", "--set", *length]) == 0
    assert RunFolder(tmp_path / "run").newest().header.episode == 8


def test_a_run_resumes_in_its_own_precision(tmp_path):
    folder = str(tmp_path / "run")
    assert main(["train", "quickdraw", "--out", folder, "--device", "cpu", "--precision", "bf16", "--set", *SMALL]) == 0
    length = ["training.episodes=8", "training.cycles=2"]
    assert main(["train", "--resume", folder, "--device", "cpu", "--set", *length]) == 0
    assert RunFolder(tmp_path / "run").metadata()["resumed"][0]["hardware"]["precision"] == "bf16"


def test_python_m_tapnet_is_the_command_line():
    done = subprocess.run([sys.executable, "-m", "tapnet", "recipes"], capture_output=True, text=True, check=True)
    assert "quickdraw" in done.stdout


def test_debug_shows_the_traceback(monkeypatch):
    monkeypatch.setenv("TAPNET_DEBUG", "1")
    with pytest.raises(FileNotFoundError):
        main(["evaluate", str(Path("nowhere"))])


def test_evaluate_says_when_the_classes_were_trained_on(run_folder, capsys):
    assert main(["evaluate", str(run_folder), "--split", "train", "--episodes", "4"]) == 0
    assert "It was trained on" in capsys.readouterr().err


def test_train_takes_another_method_than_the_recipes(tmp_path, capsys):
    small = [change for change in SMALL if "num_references" not in change]
    run = tmp_path / "run"
    arguments = ["train", "quickdraw", "--method", "matching", "--out", str(run), "--device", "cpu", "--no-test"]
    assert main([*arguments, "--set", *small]) == 0
    assert "quickdraw-matching: matching with conv4" in capsys.readouterr().out
    assert type(load(run)) is METHODS["matching"]


def test_train_takes_a_recipe_or_a_run_to_resume(run_folder, capsys):
    assert main(["train", "quickdraw", "--resume", str(run_folder)]) == 2
    assert "--resume continues the run in its folder by its recipe: leave out RECIPE" in capsys.readouterr().err


def test_train_takes_the_first_network_once(tmp_path, capsys):
    first = ["--from", "drawings", "--set", "training.init_from=characters"]
    assert main(["train", "quickdraw", "--out", str(tmp_path / "run"), *first]) == 2
    assert "--from and --set training.init_from are the same: give one of them." in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("method.options=3", "method.options"),
        ("method.options.projection_dim=abc", "`projection_dim` needs to be a whole number or None, got 'abc'"),
        ("backbone.options.widths=5", "`widths` needs 4 values from 1 on, one per block, got 5"),
    ],
)
def test_train_names_a_wrong_option(change, words, tmp_path, capsys):
    assert main(["train", "quickdraw", "--out", str(tmp_path / "run"), "--set", change]) == 2
    assert words in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "run").exists()


def test_train_does_not_resume_with_another_method(tmp_path, capsys):
    assert main(["train", "--resume", str(tmp_path), "--method", "matching"]) == 2
    assert "--method" in capsys.readouterr().err


def test_evaluate_leaves_out_the_interval_over_classes_when_asked(run_folder, capsys):
    assert main(["evaluate", str(run_folder), "--episodes", "4", "--no-class-interval", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["results"][0]["ci95_bootstrap"] is None


@pytest.mark.parametrize(
    "arguments",
    [
        ["fit", "nowhere", "--out", "a.task"],
        ["table", "nosuch"],
        ["serve", "--port", "99999999"],
        ["figure", "nosuch"],
        ["figure", "projection", "nowhere"],
        ["evaluate", "nowhere"],
        ["compare", "nowhere", "drawings"],
    ],
)
def test_cheap_checks_come_before_pytorch(arguments, tmp_path):
    code = (
        "import sys\n"
        "from tapnet.cli import main\n"
        "try: done = main(sys.argv[1:])\n"
        "except SystemExit as stop: done = stop.code\n"
        "print(done, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.splitlines()[-1] == "2 False", done.stderr


def test_tables_of_the_command_are_those_of_the_package():
    from tapnet.cli.paper import TABLES
    from tapnet.paper import tables

    assert set(TABLES) == set(tables.TABLES)


def test_runs_says_why_it_cannot_read_a_run(run_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    header = json.loads(safe_open(run_folder / LAST, framework="np").metadata()["tapnet"])
    header["recipe"]["training"]["warp_drive"] = 9
    (tmp_path / "newer").mkdir()
    save_file({"a": np.zeros(1)}, tmp_path / "newer" / LAST, {"tapnet": json.dumps(header)})
    (tmp_path / "junk").mkdir()
    (tmp_path / "junk" / LAST).write_bytes(b"junk")
    assert main(["runs", ".", "--json"]) == 0
    assert [run["state"] for run in json.loads(capsys.readouterr().out)] == ["unreadable", "unreadable"]
    assert main(["runs", "."]) == 0
    printed = capsys.readouterr()
    assert "0/" not in printed.out
    assert "`training.warp_drive` is not a key of a recipe" in printed.err


def test_train_describes_the_run_on_one_line_outside_a_terminal(tmp_path):
    arguments = ["train", "quickdraw", "--out", str(tmp_path / "run"), "--no-test", "--device", "cpu", "--set", *SMALL]
    done = subprocess.run(
        [sys.executable, "-m", "tapnet", *arguments], capture_output=True, text=True, env=os.environ | {"COLUMNS": "40"}
    )
    assert done.returncode == 0, done.stderr
    assert re.match(r"quickdraw: tapnet with conv4 on quickdraw, .* per class$", done.stdout.splitlines()[0])

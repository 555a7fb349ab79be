import errno
import json
import math
import os
import re
from pathlib import Path

import pytest
import torch

from tapnet.checkpoint import read_checkpoint
from tapnet.cli import main
from tapnet.errors import UserError
from tapnet.paths import BEST, LAST
from tapnet.recipe import load_recipe, recipe_from
from tapnet.training import Diverged, Run, train
from tapnet.training.faults import episode_loss
from tapnet.training.run_folder import EVALUATION, METADATA, PREVIOUS, RunFolder, read_curve
from tapnet.training.run_summary import find_runs


def recipe(**training):
    return recipe_from(
        {
            "name": "small",
            "data": {"name": "quickdraw"},
            "backbone": {"name": "conv4", "options": {"widths": [8, 8, 8, 8], "dropout": 0.1}},
            "method": {"name": "tapnet", "options": {"num_references": 6}},
            "training": {"way": 6, "shot": 1, "query": 2, "episodes": 4} | training,
            "validation": {"way": 5, "shot": 1, "query": 5, "episodes": 20, "every": 2},
        },
        "test",
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "done"
    train(recipe(), folder, device="cpu", precision="float32")
    return folder


def test_a_run_folder_explains_itself(finished):
    facts = json.loads((finished / METADATA).read_text())
    explained = {"command", "versions", "commit", "data", "seed", "hardware", "state", "started", "ended", "process"}
    assert explained <= facts.keys()
    assert facts["data"]["train"] == read_checkpoint(finished).header.data["train"]
    assert facts["state"] == "finished"


@pytest.mark.skipif(not (Path(__file__).parents[2] / ".git").exists(), reason="not a git checkout")
def test_a_run_folder_names_the_commit_it_was_made_from(finished):
    assert re.match("[0-9a-f]{40}", json.loads((finished / METADATA).read_text())["commit"])


def test_the_state_before_the_last_is_kept(finished):
    assert read_checkpoint(finished / PREVIOUS).header.episode < read_checkpoint(finished / LAST).header.episode


@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_a_damaged_newest_checkpoint_gives_way_to_the_one_before_it(tmp_path, finished, damage):
    for name in (LAST, PREVIOUS):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    content = bytearray((tmp_path / LAST).read_bytes())
    content[-100] ^= 1
    (tmp_path / LAST).write_bytes(content[:1000] if damage == "cut" else content)
    if damage == "gone":
        (tmp_path / LAST).unlink()
    with pytest.warns(RuntimeWarning, match="Resuming from the checkpoint before it, after episode 2"):
        assert RunFolder(tmp_path).newest().header.episode == 2


def test_a_run_resumes_from_the_checkpoint_before_a_damaged_one(tmp_path, finished):
    train(recipe(), tmp_path, device="cpu", precision="float32")
    (tmp_path / LAST).write_bytes(b"rubbish")
    with pytest.warns(RuntimeWarning, match="damaged"):
        train(recipe(), tmp_path, device="cpu", precision="float32", resume=True)
    assert (tmp_path / LAST).read_bytes() == (finished / LAST).read_bytes()


def test_a_second_process_on_a_run_folder_is_refused(tmp_path):
    train(recipe(), tmp_path, device="cpu")
    with (
        RunFolder(tmp_path).held(),
        pytest.raises(ValueError, match=rf"in use by process {os.getpid()} on .*: wait until it ends"),
    ):
        train(recipe(), tmp_path, device="cpu", resume=True)


def test_the_state_is_saved_between_validations_when_time_has_passed(tmp_path):
    seen = []

    def watch(_):
        seen.append(read_checkpoint(tmp_path / LAST).header.episode)

    train(recipe(episodes=3), tmp_path, device="cpu", watch=watch, save_seconds=0)
    assert seen == [1, 2, 3]


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_leaves_a_whole_checkpoint_and_says_so(tmp_path, monkeypatch):
    def watch(step):
        if step.episode == 2:
            monkeypatch.setattr("os.fsync", full_disk)

    with pytest.raises(
        OSError, match=r"No space left .* the checkpoint after episode 2 is intact; resume with: tapnet"
    ):
        train(recipe(), tmp_path, device="cpu", watch=watch)
    assert read_checkpoint(tmp_path / LAST).header.episode == 2


def test_data_that_vanishes_leaves_a_whole_checkpoint_and_says_so(tmp_path, monkeypatch):
    def watch(step):
        if step.episode == 3:
            monkeypatch.setattr("tapnet.data.ImageSet.gather", vanished)

    def vanished(*_):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "data/quickdraw.bin")

    with pytest.raises(OSError, match=r"No such file .*quickdraw\.bin.* after episode 2 is intact"):
        train(recipe(), tmp_path, device="cpu", watch=watch)
    assert RunFolder(tmp_path).metadata()["state"] == "failed"


def test_a_recipe_of_the_user_in_the_folder_is_not_overwritten(tmp_path):
    (tmp_path / "recipe.yaml").write_text("# mine\n")
    with pytest.raises(UserError, match=r"holds a recipe\.yaml that is not of a run"):
        RunFolder(tmp_path).begin(load_recipe("quickdraw"), {})
    assert (tmp_path / "recipe.yaml").read_text() == "# mine\n"
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file/run cannot be written \(.*\): choose another folder"):
        train(recipe(), tmp_path / "file" / "run", device="cpu")


def test_an_episode_that_diverged_is_kept_and_gives_its_loss_again(tmp_path):
    run = Run(recipe(), tmp_path, "cpu", "float32")
    run.start()
    run.method.references.data *= 1e5
    with pytest.raises(Diverged, match=r"loss of episode 0 is .*: lower training.learning_rate\. .*episode-0") as fault:
        run.step()
    told = float(str(fault.value).split(" is ")[1].split(":")[0])
    assert episode_loss(tmp_path / "episode-0.safetensors") == pytest.approx(told, rel=1e-4)


def test_a_gradient_that_is_not_finite_does_not_reach_the_weights(tmp_path):
    run = Run(recipe(), tmp_path, "cpu", "float32")
    before = {name: parameter.detach().clone() for name, parameter in run.method.named_parameters()}
    run.method.references.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(Diverged, match="gradient at episode 0 is not finite"):
        run.step()
    assert all(torch.equal(parameter, before[name]) for name, parameter in run.method.named_parameters())


def test_a_kept_episode_that_is_no_such_file_is_refused(finished):
    with pytest.raises(ValueError, match="is not a saved episode"):
        episode_loss(finished / BEST)


def test_a_damaged_curve_is_named(tmp_path):
    (tmp_path / "curve.jsonl").write_text('{"episode": 1\n')
    with pytest.raises(ValueError, match=r"curve\.jsonl is damaged"):
        read_curve(tmp_path)


def test_runs_tells_a_finished_run_from_one_that_was_killed(finished):
    assert [(run.folder, run.state, run.episode) for run in find_runs(finished.parent)] == [(finished, "finished", 4)]
    RunFolder(finished).update(state="running")
    assert find_runs(finished)[0].state == "killed"
    with RunFolder(finished).held():
        assert find_runs(finished)[0].state == "running"
    RunFolder(finished).update(state="finished")


def test_runs_lists_state_and_result(finished, capsys):
    RunFolder(finished).record_evaluation([{"accuracy": 0.5, "ci95": 0.01, "way": 5, "shot": 1}])
    assert main(["runs", str(finished.parent)]) == 0
    printed = capsys.readouterr().out
    assert "finished" in printed
    assert "50.00% ± 1.00" in printed
    assert "5-way 1-shot" in printed
    (finished / EVALUATION).unlink()


def test_runs_says_where_it_found_none(tmp_path, capsys):
    assert main(["runs", str(tmp_path)]) == 2
    assert "no run in" in capsys.readouterr().err


def test_a_run_whose_states_are_both_damaged_says_so(tmp_path):
    for name in (LAST, PREVIOUS):
        (tmp_path / name).write_bytes(b"rubbish")
    with pytest.raises(ValueError, match="no state to resume from: previous"):
        RunFolder(tmp_path).newest()

"""The folder of a run: what it says, and that it survives faults."""

import errno
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from small_runs import same_files, small_recipe

from tapnet.checkpoint import read_checkpoint
from tapnet.cli import main
from tapnet.errors import UserError
from tapnet.paths import BEST, LAST
from tapnet.training import Point, RunFolder, find_runs, read_curve, train
from tapnet.training.loader import episode_loss
from tapnet.training.run_folder import CURVE, EVALUATION, PREVIOUS, SNAPSHOTS, read_snapshots

SCRIPT = Path(__file__).with_name("killed_runs.py")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """One run that nobody disturbed, one killed at random moments, one killed while it was saving."""
    root = tmp_path_factory.mktemp("killed")
    subprocess.run([sys.executable, str(SCRIPT), str(root)], check=True, timeout=1800)
    return root


@pytest.fixture(scope="module")
def finished(killed):
    return killed / "whole"


@pytest.mark.parametrize(("name", "least"), [("anywhere", 1), ("saving", 4)])
def test_killed_run_ends_bit_for_bit_like_one_that_was_not(killed, finished, name, least):
    assert same_files(killed / name, finished, BEST, LAST, CURVE, SNAPSHOTS)
    assert len(RunFolder(killed / name).metadata()["resumed"]) >= least
    assert {path.name for path in (killed / name).iterdir()} == {path.name for path in finished.iterdir()}


def test_run_folder_explains_itself(finished):
    facts = RunFolder(finished).metadata()
    explained = {"command", "versions", "commit", "data", "seed", "hardware", "state", "started", "ended", "process"}
    assert explained <= facts.keys()
    assert facts["data"]["train"] == read_checkpoint(finished).header.data["train"]
    assert facts["state"] == "finished"


@pytest.mark.skipif(not (Path(__file__).parents[2] / ".git").exists(), reason="not a git checkout")
def test_run_folder_names_the_commit_it_was_made_from(finished):
    assert re.match("[0-9a-f]{40}", RunFolder(finished).metadata()["commit"])


@pytest.mark.parametrize("damage", ["cut", "flip", "gone"])
def test_damaged_newest_checkpoint_gives_way_to_the_one_before_it(tmp_path, finished, damage):
    for path in finished.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    content = bytearray((tmp_path / LAST).read_bytes())
    content[-100] ^= 1
    (tmp_path / LAST).write_bytes(content[:1000] if damage == "cut" else content)
    if damage == "gone":
        (tmp_path / LAST).unlink()
    with pytest.warns(RuntimeWarning, match="Resuming from the checkpoint before it, after episode 22"):
        train(small_recipe(episodes=24), tmp_path, "cpu", "float32", resume=True, test=False)
    assert (tmp_path / LAST).read_bytes() == (finished / LAST).read_bytes()


def test_run_whose_states_are_both_damaged_says_so(tmp_path):
    for name in (LAST, PREVIOUS):
        (tmp_path / name).write_bytes(b"rubbish")
    with pytest.raises(ValueError, match="no state to resume from: previous"):
        RunFolder(tmp_path).newest()


def test_second_process_on_a_run_folder_is_refused(finished):
    process = RunFolder(finished).metadata()["process"]["pid"]
    with (
        RunFolder(finished).locked(),
        pytest.raises(ValueError, match=rf"in use by process {process} on .*: wait until it ends"),
    ):
        train(small_recipe(episodes=24), finished, "cpu", resume=True)


def test_state_is_saved_between_validations_when_time_has_passed(tmp_path):
    saved = []

    def watch(_):
        saved.append(read_checkpoint(tmp_path / LAST).header.episode)

    train(small_recipe(episodes=3), tmp_path, "cpu", watch=watch, save_seconds=0, test=False)
    assert saved == [0, 1, 2, 3]


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def vanished(*_):
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), "data/quickdraw.bin")


@pytest.mark.parametrize(
    ("broken", "fault", "words"),
    [
        ("os.fsync", full_disk, "No space left .* the checkpoint after episode 2 is intact; resume with: tapnet"),
        ("tapnet.data.ImageSet.gather", vanished, r"No such file .*quickdraw\.bin.* after episode 2 is intact"),
    ],
)
def test_fault_of_the_disk_leaves_a_whole_checkpoint_and_says_so(tmp_path, monkeypatch, broken, fault, words):
    def watch(step):
        if step.episode == 2:
            monkeypatch.setattr(broken, fault)

    with pytest.raises(OSError, match=words):
        train(small_recipe(), tmp_path, "cpu", watch=watch, test=False)
    assert read_checkpoint(tmp_path / LAST).header.episode == 2
    monkeypatch.undo()
    assert RunFolder(tmp_path).metadata()["state"] == ("running" if broken == "os.fsync" else "failed")


def test_recipe_of_the_user_in_the_folder_is_not_overwritten(tmp_path):
    (tmp_path / "recipe.yaml").write_text("# mine\n")
    with pytest.raises(UserError, match=r"holds a recipe\.yaml that is not of a run"):
        RunFolder(tmp_path).begin(small_recipe(), {})
    assert (tmp_path / "recipe.yaml").read_text() == "# mine\n"
    assert [path.name for path in tmp_path.iterdir()] == ["recipe.yaml"]


def test_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match=r"file/run cannot be written \(.*\): choose another folder"):
        train(small_recipe(), tmp_path / "file" / "run", "cpu")


def test_saved_episode_that_is_no_such_file_is_refused(finished):
    with pytest.raises(ValueError, match="is not a saved episode"):
        episode_loss(finished / BEST)


@pytest.mark.parametrize(
    ("name", "read", "words"),
    [(CURVE, read_curve, "is damaged"), (SNAPSHOTS, read_snapshots, "is damaged .* delete it")],
)
def test_damaged_file_of_a_run_is_named(tmp_path, name, read, words):
    (tmp_path / name).write_text('{"episode": 1\n')
    with pytest.raises(ValueError, match=rf"{re.escape(name)} {words}"):
        read(tmp_path)


def test_points_and_snapshots_of_a_later_state_are_cut_off(tmp_path):
    folder, references = RunFolder(tmp_path), torch.randn(3, 4)
    folder.begin(small_recipe(), {})
    for episode, snapshot in ((0, references), (10, references + 1), (20, references + 2), (10, references + 3)):
        folder.add_point(Point(episode, 1.0, 0.5, 0.5, 0.01, 1e-3), {"references": snapshot})
    assert [point.episode for point in read_curve(tmp_path)] == [0, 10]
    snapshots = read_snapshots(tmp_path)
    assert snapshots["episodes"].tolist() == [0, 10]
    assert torch.equal(snapshots["references"], torch.stack([references, references + 3]))


def test_method_without_snapshots_leaves_no_file(tmp_path):
    folder = RunFolder(tmp_path)
    folder.begin(small_recipe(), {})
    folder.add_point(Point(0, None, None, 0.5, 0.01, 1e-3), {})
    assert not (tmp_path / SNAPSHOTS).exists()
    assert read_snapshots(tmp_path)["episodes"].tolist() == []


def test_runs_tells_a_finished_run_from_one_that_was_killed(finished):
    assert [(run.folder, run.state, run.episode) for run in find_runs(finished)] == [(finished, "finished", 24)]
    RunFolder(finished).update(state="running")
    assert find_runs(finished)[0].state == "killed"
    with RunFolder(finished).locked():
        assert find_runs(finished)[0].state == "running"
    RunFolder(finished).update(state="finished")


def test_runs_lists_state_and_result(finished, capsys):
    RunFolder(finished).record_evaluation([{"accuracy": 0.5, "ci95": 0.01, "way": 5, "shot": 1}])
    assert main(["runs", str(finished)]) == 0
    printed = capsys.readouterr().out
    assert all(words in printed for words in ("finished", "50.00% ± 1.00", "5-way 1-shot"))
    (finished / EVALUATION).unlink()

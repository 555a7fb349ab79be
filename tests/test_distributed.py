"""Several processes on one machine, over gloo."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tapnet.checkpoint import read_checkpoint
from tapnet.paths import LAST
from tapnet.training.run_folder import RunFolder, read_curve

SCRIPT = str(Path(__file__).with_name("shared_runs.py"))
SMALL = [
    "backbone.options.widths=[8, 8, 8, 8]",
    "method.options.num_references=6",
    "training.way=6",
    "training.shot=1",
    "training.query=2",
    "training.meta_batch=2",
    "validation.episodes=10",
]


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The folder in which one, two and three processes left their work."""
    root = tmp_path_factory.mktemp("shared")
    subprocess.run([sys.executable, SCRIPT, str(root)], check=True, timeout=1800)
    return root


@pytest.mark.parametrize("part", ["weights", "optimizer"])
def test_two_ranks_take_the_steps_of_one_with_the_same_meta_batch(shared, part):
    """Parameters, batch-norm statistics and optimizer state, to float rounding."""
    one, two = (getattr(read_checkpoint(shared / f"run-{count}" / LAST), part) for count in (1, 2))
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=1e-4, atol=1e-6)


def test_two_ranks_leave_the_learning_curve_of_one_and_say_how_many_they_were(shared):
    assert RunFolder(shared / "run-2").metadata()["processes"] == 2
    one, two = (read_curve(shared / f"run-{count}") for count in (1, 2))
    assert [point.episode for point in two] == [0, 4, 8]
    assert [point.loss for point in two[1:]] == pytest.approx([point.loss for point in one[1:]], rel=1e-4)


def test_evaluation_is_identical_on_one_two_and_three_ranks(shared):
    assert len({(shared / f"accuracy-{count}").read_text() for count in (1, 2, 3)}) == 1


def printed(folder, ranks):
    return [(folder / f"rank-{rank}").read_text() for rank in range(ranks)]


def test_ranks_that_do_not_divide_the_meta_batch_are_refused_by_one_for_all(shared):
    first, *others = printed(shared / "refused", 3)
    assert first.startswith("3 processes need training.meta_batch to be a multiple of 3, got 2")
    assert others == ["2", "2"]  # exit codes, without a word


def test_only_the_rank_whose_loss_is_not_finite_says_so_and_keeps_its_episode(shared):
    first, second = printed(shared / "diverged", 2)
    assert second.startswith("The loss of episode 1 is nan: lower training.learning_rate.")
    assert first == "2"
    assert [path.name for path in (shared / "diverged" / "run").glob("episode-*")] == ["episode-1.safetensors"]


@pytest.fixture(scope="module")
def launched_twice(tmp_path_factory):
    """A run of two processes that torchrun starts, and the same into the same folder."""
    folder = tmp_path_factory.mktemp("torchrun") / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "tapnet"]
    command += ["train", "quickdraw", "--device", "cpu", "--out", str(folder), "--set", *SMALL]
    command += ["training.episodes=4", "validation.every=2"]
    runs = [subprocess.run(command, capture_output=True, text=True, timeout=1800) for _ in range(2)]
    return folder, *runs


@pytest.mark.slow
def test_torchrun_trains_with_two_processes(launched_twice):
    folder, done, _ = launched_twice
    assert done.returncode == 0, done.stderr
    assert RunFolder(folder).metadata()["processes"] == 2
    assert done.stdout.count("Best checkpoint") == 1


@pytest.mark.slow
def test_a_folder_that_holds_a_run_is_refused_by_one_process_for_all(launched_twice):
    folder, _, refused = launched_twice
    lines = [line for line in refused.stderr.splitlines() if line.startswith("tapnet train:")]
    assert refused.returncode != 0
    assert lines == [
        f"tapnet train: {folder} already holds a run: resume it by `tapnet train --resume {folder}`, or choose "
        "another folder. (--out)"
    ]


@pytest.fixture(scope="module")
def orphaned(tmp_path_factory):
    """A run of two processes, one of which is killed; what the other printed, and the folder."""
    folder = tmp_path_factory.mktemp("orphaned") / "run"
    changes = [*SMALL, "training.episodes=100000", "validation.every=4"]
    command = [sys.executable, "-m", "tapnet", "train", "quickdraw", "--device", "cpu", "--devices", "2"]
    run = subprocess.Popen(
        [*command, "--strategy", "ddp", "--out", str(folder), "--set", *changes], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 900
    while not (folder / "previous.safetensors").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    os.kill(int(children[0]), signal.SIGKILL)
    return folder, run.communicate(timeout=600)[1], run.returncode


def test_a_rank_that_dies_stops_the_others_with_a_clear_message(orphaned):
    _, printed_text, code = orphaned
    assert "Another process of this run has ended or cannot be reached: the checkpoint after episode" in printed_text
    assert code == 2


def test_a_run_resumes_with_another_number_of_ranks(orphaned):
    folder, _, _ = orphaned
    facts = RunFolder(folder).metadata()
    assert (facts["state"], facts["processes"]) == ("failed", 2)
    before = read_checkpoint(folder / LAST).header.episode
    saved = (folder / LAST).stat().st_mtime_ns
    command = [sys.executable, "-m", "tapnet", "train", "--resume", str(folder), "--device", "cpu"]
    run = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 900
    while (folder / LAST).stat().st_mtime_ns == saved and time.monotonic() < deadline:
        time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    assert "Stopped after episode" in run.communicate(timeout=600)[1]
    assert read_checkpoint(folder / LAST).header.episode > before

"""Runs that are killed again and again, for test_run_folder.py: python killed_runs.py FOLDER.

Children are forked from one process with everything imported, so that many can be killed in little time.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch
from small_runs import small_recipe

from tapnet.evaluation import calibration, evaluator
from tapnet.paths import LAST
from tapnet.training import outcome, train
from tapnet.training.run_folder import PREVIOUS


def run(folder, save_seconds=0.0):
    resume = any((folder / name).exists() for name in (LAST, PREVIOUS))
    train(small_recipe(episodes=24), folder, "cpu", "float32", resume, save_seconds=save_seconds)


def forked(work, folder=None, seconds=0.0):
    """Do the work in a child; with a folder, it is killed so many seconds after it first saved there."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    if folder:
        before = saved_at(folder)
        while saved_at(folder) == before and not has_ended(child):
            time.sleep(0.01)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0


def has_ended(child):
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def saved_at(folder):
    return (folder / LAST).stat().st_mtime_ns if (folder / LAST).exists() else None


def dying_in(name, call):
    """Work that is killed in the given call of a function of `os`, in the middle of saving."""

    def work(folder):
        original, calls = getattr(os, name), 0

        def dying(*args):
            nonlocal calls
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args)

        setattr(os, name, dying)
        run(folder)

    return work


def main(root):
    torch.set_num_threads(1)
    outcome.FINAL_EPISODES = evaluator.REPLICATES = 4  # nothing is claimed about results
    calibration.GRID = (2, 5), (1, 2), 2
    forked(lambda: run(root / "whole", save_seconds=1e9))
    lots = random.Random(0)
    for _ in range(6):
        forked(lambda: run(root / "anywhere"), root / "anywhere", lots.uniform(0, 0.2))
    forked(lambda: run(root / "anywhere"))
    for name, call in (("fsync", 6), ("fsync", 5), ("link", 3), ("replace", 6)):
        work = dying_in(name, call)
        forked(lambda work=work: work(root / "saving"))
    forked(lambda: run(root / "saving"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

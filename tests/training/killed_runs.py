"""Runs that are killed again and again, for test_resume.py: python killed_runs.py FOLDER.

Children are forked from one process with everything imported, so that many can be killed in little time.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from tapnet.checkpoint import LAST
from tapnet.recipe import recipe_from
from tapnet.training import train
from tapnet.training.folder import PREVIOUS

RECIPE = {
    "name": "small",
    "data": {"name": "quickdraw"},
    "backbone": {"name": "conv4", "options": {"widths": [8, 8, 8, 8], "dropout": 0.1}},
    "method": {"name": "tapnet", "options": {"ways": 6}},
    "training": {"way": 6, "shot": 1, "query": 2, "episodes": 40, "augmentation": "affine"},
    "validation": {"way": 5, "shot": 1, "query": 5, "episodes": 20, "every": 10},
}


def run(folder, save_seconds=0.0):
    resume = any((folder / name).exists() for name in (LAST, PREVIOUS))
    train(recipe_from(RECIPE, "test"), folder, "cpu", "float32", resume, save_seconds=save_seconds)


def forked(work, seconds=None, once=None):
    """Do the work in a child, killed so many seconds after a file is there; gives the signal that ended it, or 0."""
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
    if seconds is not None:
        while not once.exists():
            time.sleep(0.01)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    status = os.waitpid(child, 0)[1]
    assert not os.WIFEXITED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def dying_in(name, call):
    """Work that is killed in the given call of a function of `os`, in the middle of saving."""

    def work(folder):
        original, calls = getattr(os, name), 0

        def counted(*args):
            nonlocal calls
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)
            return original(*args)

        setattr(os, name, counted)
        run(folder)

    return work


def main(root):
    torch.set_num_threads(1)
    forked(lambda: run(root / "whole", save_seconds=1e9))
    lots = random.Random(0)
    for seconds in (0.0, *(lots.uniform(0, 1) for _ in range(5))):
        forked(lambda: run(root / "anywhere"), seconds, once=root / "anywhere" / LAST)
    forked(lambda: run(root / "anywhere"))
    for name, call in (("fsync", 7), ("fsync", 9), ("link", 3), ("replace", 6)):
        work = dying_in(name, call)
        forked(lambda work=work: work(root / "saving"))
    forked(lambda: run(root / "saving"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

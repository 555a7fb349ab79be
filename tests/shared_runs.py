"""The same work by one, two and three processes, for test_distributed.py: python shared_runs.py FOLDER.

The processes are forked from one with everything imported, and find each other as those of torchrun do.
"""

import math
import os
import socket
import sys
import traceback
from pathlib import Path

import torch

from tapnet import hardware
from tapnet.data import load_dataset
from tapnet.data.episodes import EpisodeSpec
from tapnet.evaluation.evaluator import Evaluator
from tapnet.hardware import launched
from tapnet.recipe import recipe_from
from tapnet.training import train

RECIPE = {
    "name": "shared",
    "data": {"name": "quickdraw"},
    "backbone": {"name": "conv4", "options": {"widths": [8, 8, 8, 8]}},
    "method": {"name": "tapnet", "options": {"num_references": 6}},
    "training": {"way": 6, "shot": 1, "query": 2, "episodes": 8, "meta_batch": 2},
    "validation": {"way": 5, "shot": 1, "query": 5, "episodes": 40, "every": 4},
}


def step(fabric, folder):
    train(recipe_from(RECIPE, "test"), folder, "cpu", "float32", fabric=fabric)


def evaluate(_, path):
    torch.manual_seed(0)
    evaluator = Evaluator(recipe_from(RECIPE, "test").build((1, 28, 28)).eval(), load_dataset("quickdraw", "test"))
    result = evaluator.evaluate(EpisodeSpec(5, 1, 5, 1000), bootstrap=False)
    if hardware.rank() == 0:
        path.write_text(repr((result.accuracy, result.ci95)))


def refused(fabric, path):
    """Each process leaves what it says; those that are silent leave their exit code."""
    try:
        step(fabric, path / "run")
    except (ValueError, SystemExit) as end:
        (path / f"rank-{hardware.rank()}").write_text(str(end))


def diverged(fabric, path):
    """The second process alone has a loss that is not finite."""
    if hardware.rank() == 1:
        torch.nn.functional.cross_entropy = lambda logits, _: logits.sum() * math.nan
    refused(fabric, path)


def shared(count, work, path):
    """Do the work by so many processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(count):
        child = os.fork()
        if child == 0:
            numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
            place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "test"}
            os.environ.update({name: str(value) for name, value in (numbers | place).items()})
            try:
                with launched(torch.device("cpu"), "float32") as fabric:
                    work(fabric, path)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        children.append(child)
    assert all(os.waitpid(child, 0)[1] == 0 for child in children)


def main(root):
    torch.set_num_threads(1)
    for count in (1, 2):
        shared(count, step, root / f"run-{count}")
    for count in (1, 2, 3):
        shared(count, evaluate, root / f"accuracy-{count}")
    for count, work in ((3, refused), (2, diverged)):
        path = root / work.__name__
        path.mkdir()
        shared(count, work, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))

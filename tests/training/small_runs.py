"""A run of seconds that many tests of training share."""

import os
import signal

import torch

from tapnet.hardware import launched
from tapnet.recipe import recipe_from
from tapnet.training import Run


def small_recipe(method="tapnet", options=None, **training):
    """Six episodes with a narrow Conv4 on the bundled drawings, validated after every second."""
    sizes = {"way": 6, "shot": 1, "query": 2, "episodes": 6, "augmentation": "crop"} | training
    options = {"num_references": sizes["way"]} if method == "tapnet" and options is None else options or {}
    return recipe_from(
        {
            "name": "small",
            "data": {"name": "quickdraw"},
            "backbone": {"name": "conv4", "options": {"widths": [8, 8, 8, 8], "dropout": 0.1}},
            "method": {"name": method, "options": options},
            "training": sizes,
            "validation": {"way": 5, "shot": 1, "query": 5, "episodes": 20, "every": 2},
        },
        "test",
    )


def new_run(recipe, folder, precision="float32"):
    """The state of a run before its first step."""
    with launched(torch.device("cpu"), precision) as fabric:
        return Run(recipe, folder, precision, fabric)


def interrupt_after(episode):
    """What a watcher does to behave like Ctrl-C after this episode."""

    def watch(step):
        if step.episode == episode:
            os.kill(os.getpid(), signal.SIGINT)

    return watch


def same_files(folder, other, *names):
    """Whether files of two folders are the same, byte for byte."""
    return all((folder / name).read_bytes() == (other / name).read_bytes() for name in names)

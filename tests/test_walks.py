"""How many files of the package one prediction, one training and one step of it enter, counted over their calls."""

import re
import sys
import threading
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from PIL import Image

import tapnet
from tapnet.cli import main
from tapnet.hardware import launched
from tapnet.recipe import load_recipe
from tapnet.training import Run

ROOT = f"{Path(tapnet.__file__).parent}/"
GUIDE = (Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")


def listed(heading):
    """The files that CONTRIBUTING names in the table below a heading."""
    table = GUIDE.partition(f"### {heading}\n")[2].partition("\n#")[0]
    return {*re.findall(r"`([a-z_0-9/]+\.py)`", table)}


def walk(work):
    """Do the work twice; return the files that the second time enters, and the number of changes of folder."""
    entered = []

    def record(frame, event, _):
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(ROOT) and frame.f_code.co_name != "<module>":
            entered.append(file.removeprefix(ROOT))

    work()
    threading.setprofile(record)
    sys.setprofile(record)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    folders = [file.partition("/")[0] for file in entered]
    return {*entered}, sum(one != other for one, other in pairwise(folders))


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("walk")
    for number in range(6):
        path = folder / "images" / f"class {number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.linear_gradient("L").rotate(40 * number).save(path)
    assert main(["fit", str(folder / "images"), "--network", "drawings", "--out", str(folder / "a.task")]) == 0
    return folder / "a.task"


def test_one_image_enters_at_most_20_files_with_40_changes_of_folder(task):
    image = task.parent / "images" / "class 0" / "0.png"
    files, changes = walk(lambda: main(["predict", str(task), str(image)]))
    assert len(files) <= 20, sorted(files)
    assert changes <= 40
    assert files == listed("One image, from file to answer")


@pytest.mark.usefixtures("short_evaluation")
def test_training_of_two_episodes_enters_at_most_34_files(tmp_path):
    small = ["training.episodes=2", "training.query=1", "validation.every=2", "validation.episodes=2"]
    runs = iter("ab")
    command = ["train", "quickdraw", "--device", "cpu", "--no-test", "--set", *small]
    files, _ = walk(lambda: main([*command, "--out", str(tmp_path / next(runs))]))
    assert len(files) <= 34, sorted(files)


def test_step_of_training_enters_at_most_14_files(tmp_path):
    with launched(torch.device("cpu"), "float32") as fabric:
        run = Run(load_recipe("quickdraw", ["training.query=1"]), tmp_path, "float32", fabric)
    files, _ = walk(run.step)
    run.loader.close()
    assert len(files) <= 14, sorted(files)
    assert files <= listed("One step of training")  # the next episode is drawn in another thread

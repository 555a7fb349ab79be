"""The commands and the Python of the README run as printed there, only smaller."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset

from tapnet import load_dataset
from tapnet.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SMALLER = [
    "backbone.options.widths=[16, 16, 16, 16]",
    "training.episodes=2",
    "validation.episodes=4",
    "validation.every=2",
]


def blocks(language):
    return [block for kind, block in re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL) if kind == language]


def commands():
    lines = [line.split("#")[0].split() for block in blocks("") for line in block.splitlines()]
    return [line[1:] for line in lines if line[:1] == ["tapnet"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where the commands have been run, in the order of the README."""
    folder = tmp_path_factory.mktemp("readme")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_pictures(folder)
        for command in commands():
            assert main(smaller(command)) == 0, command
    return folder


def write_pictures(folder):
    """Three classes of five drawings, some more to classify and some to score on."""
    drawings = load_dataset("quickdraw", "test")
    for label in range(3):
        for number, position in enumerate(np.flatnonzero(drawings.labels == label)[:8]):
            place = "my_classes" if number < 5 else "labeled" if number < 7 else "new_photos"
            path = folder / place / ("new" if place == "new_photos" else drawings.names[label]) / f"{position}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(drawings.gather(np.array([position]))[0, ..., 0]).save(path)


def smaller(command):
    if command[0] == "train" and "--resume" not in command:
        return [*command, "--set", *SMALLER]
    measures = command[0] in ("evaluate", "compare") or "--checkpoint" in command
    return [*command, "--episodes", "4"] if measures else command


def test_readme_has_commands_and_they_leave_their_runs(folder):
    assert len(commands()) >= 6
    assert (folder / "birds.task").is_file()
    assert (folder / "runs" / "mine" / "best.safetensors").is_file()
    assert (folder / "runs" / "short" / "best.safetensors").is_file()


def test_readme_python_runs(folder, monkeypatch):
    monkeypatch.chdir(folder)
    labels = torch.arange(20).repeat_interleave(13)
    names = {
        "labels": labels,
        "pictures": load_dataset("quickdraw", "test").gather(np.arange(0, 400, 50)),
        "classes": np.repeat(list("abcd"), 2),
        "more_pictures": load_dataset("quickdraw", "test").gather(np.arange(3)),
        "dataset": TensorDataset(torch.rand(260, 3, 8, 8), labels),
    }
    for block in blocks("python"):
        short = block.replace("50_000", "1").replace("84, 84", "8, 8").replace("num_workers=4", "num_workers=0")
        exec(short, names)
    assert names["logits"].shape == (5 * 15, 5)
    assert names["loss"].isfinite()
    assert names["clf"].predict_proba(names["more_pictures"]).shape == (3, 4)

import io
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from tapnet.cli import main


def tapnet(*arguments):
    return main(["data", *map(str, arguments)])


def image_bytes(value):
    stream = io.BytesIO()
    Image.fromarray(np.full((8, 8, 3), value, dtype=np.uint8)).save(stream, "PNG")
    return stream.getvalue()


@pytest.fixture
def pets(tmp_path):
    """Six classes of eight images."""
    for name in ("bee", "cat", "dog", "emu", "fox", "gnu"):
        for value in range(8):
            path = tmp_path / "pets" / name / f"{value}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image_bytes(value * 20 + len(name) + ord(name[0]) % 7))
    return tmp_path / "pets"


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("TAPNET_DATA", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.fixture
def ready(pets, root):
    assert tapnet("prepare", "folder", "--from", pets, "--name", "pets", "--size", 8) == 0
    return root


def test_data_list_shows_every_dataset_and_the_command_to_make_it_ready(root, capsys):
    assert tapnet("list") == 0
    printed = capsys.readouterr().out
    assert "quickdraw: 34,500 images of 28×28×1, bundled" in printed
    assert "tapnet data prepare mini-imagenet --from PATH" in printed
    assert "tapnet data download omniglot" in printed
    assert str(root) in printed


def test_data_prepare_says_what_it_recognized_and_list_and_check_show_it(pets, root, capsys):
    assert tapnet("prepare", "folder", "--from", pets, "--name", "pets", "--size", 8) == 0
    printed = capsys.readouterr().out
    assert "a folder of images by class: 6 classes, 48 images" in printed
    assert f"pets is ready: {root / 'pets'}" in printed
    assert tapnet("list") == 0
    assert f"pets: 48 images of 8×8×3, ready in {root / 'pets'}" in capsys.readouterr().out
    assert tapnet("check", "pets") == 0
    printed = capsys.readouterr().out
    assert "48 of 8×8×3" in printed
    assert "sha-256" in printed
    assert tapnet("prepare", "folder", "--from", pets, "--name", "pets") == 2
    assert "prepared already" in capsys.readouterr().err
    assert tapnet("prepare", "folder", "--from", pets, "--root", next(pets.glob("*/*.png"))) == 2
    assert "is a file" in capsys.readouterr().err


def test_data_check_and_list_name_a_damaged_set(ready, capsys):
    path = ready / "pets" / "images.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert tapnet("check", "pets") == 2
    assert "damaged" in capsys.readouterr().err
    (ready / "pets" / "manifest.json").write_text("{")
    assert tapnet("list") == 0
    assert "pets: cannot be used" in capsys.readouterr().out


@pytest.mark.parametrize(("classes", "images", "drawn"), [(2, 2, True), (3, 20, True), (1, 4, False), (3, 1, False)])
@pytest.mark.usefixtures("root")
def test_data_show_takes_an_episode_that_fits_a_small_set(tmp_path, capsys, classes, images, drawn):
    for label in range(classes):
        for value in range(images):
            path = tmp_path / "few" / f"class {label}" / f"{value}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image_bytes(40 * label + value))
    assert tapnet("prepare", "folder", "--from", tmp_path / "few", "--name", "few", "--size", 8) == 0
    assert tapnet("show", "few", "--split", "all", "--out", tmp_path / "grid.png") == 0
    assert (tmp_path / "grid.png").is_file()
    assert (tmp_path / "grid-episode.png").is_file() == drawn
    assert ("No episode: it needs 2 classes with 2 images each." in capsys.readouterr().out) != drawn


def test_data_show_leaves_nothing_when_the_episode_cannot_be_drawn(tmp_path):
    assert tapnet("show", "quickdraw", "--episode", "-1", "--out", tmp_path / "x.png") == 2
    assert list(tmp_path.iterdir()) == []


def test_data_list_says_how_much_of_a_published_set_is_there(tmp_path, root, capsys):
    path = tmp_path / "mini" / "n01532829" / "1.png"
    path.parent.mkdir(parents=True)
    path.write_bytes(image_bytes(1))
    assert tapnet("prepare", "mini-imagenet", "--from", tmp_path / "mini", "--size", 8) == 0
    capsys.readouterr()
    assert tapnet("list") == 0
    printed = capsys.readouterr().out
    assert f"mini-imagenet: 1 image of 8×8×3 (published: 60,000), ready in {root / 'mini-imagenet'}" in printed
    assert "1 class, prepared from folders by class" in printed


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(
    ("classes", "warning"), [(5, "val has 1 class, test has 1 class: an episode needs at least 2."), (10, "")]
)
def test_data_prepare_of_a_folder_says_which_splits_are_too_small(tmp_path, capsys, classes, warning):
    for label in range(classes):
        path = tmp_path / "few" / f"class {label}" / "1.png"
        path.parent.mkdir(parents=True)
        path.write_bytes(image_bytes(20 * label))
    assert tapnet("prepare", "folder", "--from", tmp_path / "few", "--size", 8) == 0
    printed = capsys.readouterr().err
    assert warning in printed
    assert bool(printed) == bool(warning)


def test_data_prepare_stopped_by_the_user_says_how_to_resume(tmp_path, root):
    for number in range(3000):
        path = tmp_path / "many" / str(number % 3) / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image_bytes(number % 256))
    command = [sys.executable, "-m", "tapnet", "data", "prepare", "folder", "--size", "400", "--from"]
    process = subprocess.Popen(
        [*command, str(tmp_path / "many")], stderr=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    )
    while not (root / ".folder.partial" / "state.bin").is_file() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    assert b"the same command resumes" in process.communicate()[1]
    assert process.returncode == 130
    assert not (root / "folder").exists()


def test_data_check_takes_the_bundled_set(capsys):
    assert tapnet("check", "quickdraw") == 0
    assert "split train                240 classes, 24,000 images" in capsys.readouterr().out

"""Small things that many tests need; nothing here takes longer than a moment."""

import os
import signal

import numpy as np
import pytest
import torch
from hypothesis import settings

from tapnet.backbones import Conv4
from tapnet.data import ImageSet
from tapnet.methods import TapNet

THREADS = os.environ.get("TAPNET_TEST_THREADS", "1")  # small tensors: more cost more than they give
os.environ["OMP_NUM_THREADS"] = THREADS
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it for what runs in the background
torch.set_num_threads(int(THREADS))

settings.register_profile("repeatable", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def _fixed_randomness():
    """Each test starts from the same random state."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory):
    """No test reads or fills the cache of who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TAPNET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def short_evaluation():
    """Runs end with few test episodes and few temperatures, for tests that claim nothing about them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tapnet.training.outcome.FINAL_EPISODES", 4)
        patch.setattr("tapnet.evaluation.evaluator.REPLICATES", 4)
        for grid in ("GRID", "SLOW_GRID"):
            patch.setattr(f"tapnet.evaluation.calibration.{grid}", ((2, 5), (1, 2), 2))
        yield


@pytest.fixture
def blobs():
    """Ten classes of 12 tiny images, each class scattered around an image of its own."""
    generator = np.random.default_rng(0)
    centres = generator.integers(0, 256, (10, 1, 8, 8, 1))
    noise = generator.integers(-60, 61, (10, 12, 8, 8, 1))
    pixels = (centres + noise).clip(0, 255).astype(np.uint8).reshape(-1, 8, 8, 1)
    labels = np.repeat(np.arange(10), 12)
    names = tuple(f"class {k}" for k in range(10))
    return ImageSet("blobs", "test", pixels, np.arange(len(pixels)), labels, names, fingerprint="0" * 64)


@pytest.fixture
def small_tapnet():
    """TapNet with 8 references over a narrow Conv4 for 8×8 images, 16 features."""
    return TapNet(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), num_references=8).eval()


@pytest.fixture(scope="session")
def drawing_folders(tmp_path_factory):
    """fit/ and new/ with four classes of bundled drawings as large PNG files, dark on light, three and two each."""
    from PIL import Image

    from tapnet.data import load_dataset

    root = tmp_path_factory.mktemp("drawings")
    images = load_dataset("quickdraw", "val")
    for label in range(4):
        for part, numbers in (("fit", range(3)), ("new", range(3, 5))):
            folder = root / part / images.names[label]
            folder.mkdir(parents=True)
            for number in numbers:
                pixels = 255 - images.pixels[images.rows[label * 100 + number]].squeeze()
                Image.fromarray(pixels).resize((112, 112)).save(folder / f"{number}.png")
    return root


@pytest.fixture(scope="session")
def drawing_task(drawing_folders):
    """A task file fitted to `drawing_folders`."""
    from tapnet.cli import main

    path = drawing_folders / "drawings.task"
    assert main(["fit", str(drawing_folders / "fit"), "--network", "drawings", "--out", str(path)]) == 0
    return path

"""On a real sample: 24 images of each class."""

import numpy as np
import pytest

from tapnet.data import DATASETS, load_dataset
from tapnet.data.catalog import mini_imagenet_numbers
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.data.inspection import check
from tapnet.data.packing import PackOptions, prepare


@pytest.fixture(scope="module")
def packed(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("mini")
    return prepare(DATASETS["mini-imagenet"], shared / "mini-imagenet-sample.zip", folder, PackOptions())


@pytest.mark.parametrize(
    ("split", "classes"), [("train", 64), ("val", 16), ("test", 20), ("trainval", 80), ("all", 100)]
)
def test_mini_imagenet_splits_have_their_classes(packed, split, classes):
    images = load_dataset("mini-imagenet", split, packed.folder.parent)
    assert len(images.names) == classes
    assert len(images) == 24 * classes


def test_mini_imagenet_episode_touches_only_its_images(packed):
    images = packed.image_set("test")
    episode = EpisodeSampler(images.labels, EpisodeSpec(5, 1, 3))[0]
    assert images.gather(episode.query).shape == (5, 3, 84, 84, 3)


def test_mini_imagenet_images_of_84_pixels_are_not_resized(packed):
    assert packed.manifest.resized == 0


def test_mini_imagenet_sample_is_told_from_the_published_set(packed):
    findings = check(DATASETS["mini-imagenet"], packed, lambda _done, _all: None)
    found = next(each for each in findings if each.subject == "published images")
    assert not found.good
    assert "60,000, and this has 2,400, in 100 classes not 600: accuracies are not comparable" in found.words


def test_mini_imagenet_list_names_600_images_of_each_class():
    assert set(mini_imagenet_numbers()) == DATASETS["mini-imagenet"].classes
    assert all(len(set(numbers)) == 600 and max(numbers) <= 1300 for numbers in mini_imagenet_numbers().values())


def test_mini_imagenet_sample_is_of_the_listed_images(packed):
    rows = (packed.folder / "rows.txt").read_text().splitlines()
    assert all(int(row[-12:-4]) in mini_imagenet_numbers()[row[:9]] for row in rows)
    assert np.unique(rows).size == 2400

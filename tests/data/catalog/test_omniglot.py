"""On the real drawings."""

import numpy as np
import pytest

from tapnet.data import DATASETS, load_dataset
from tapnet.data.packing import PackOptions, prepare


@pytest.fixture(scope="module")
def root(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("omniglot")
    prepare(DATASETS["omniglot"], shared / "omniglot", folder, PackOptions())
    return folder


@pytest.mark.parametrize(
    ("split", "characters"),
    [("train", 1028), ("val", 172), ("test", 423), ("trainval", 1200), ("background", 964), ("evaluation", 659)],
)
def test_omniglot_splits_have_their_characters(root, split, characters):
    drawings = load_dataset("omniglot", split, root, rotations=1)
    assert len(drawings.names) == characters
    assert (np.bincount(drawings.labels) == 20).all()


def test_omniglot_trains_with_rotations_and_tests_without(root):
    assert {
        split: load_dataset("omniglot", split, root).rotations for split in ("train", "trainval", "val", "test")
    } == {
        "train": 4,
        "trainval": 4,
        "val": 1,
        "test": 1,
    }


def test_omniglot_test_can_have_1692_rotated_classes(root):
    assert len(load_dataset("omniglot", "test", root, rotations=4).class_names) == 1692


def test_omniglot_rotated_class_is_the_drawn_one_rotated(root):
    drawings = load_dataset("omniglot", "test", root, rotations=4)
    drawn, rotated = drawings.gather(np.array([7, 7 + 423 * 20]))
    assert np.array_equal(rotated, np.rot90(drawn))


def test_omniglot_an_episode_need_not_hold_two_rotations_of_a_character(root):
    drawings = load_dataset("omniglot", "test", root, rotations=4, one_rotation_per_class=True)
    episodes = drawings.episodes(60, 1, 1).batch(0, 20)
    assert all(len({label % 423 for label in classes}) == 60 for classes in episodes.classes)


def test_omniglot_ink_is_bright_by_default(root):
    drawings = load_dataset("omniglot", "test", root)
    assert drawings.image_shape == (1, 28, 28)
    assert np.median(drawings.pixels[:500]) == 0
    assert drawings.pixels[:500].max() > 200


def test_omniglot_records_filter_and_ink(root):
    from tapnet.data.packed import read_manifest
    from tapnet.data.preprocessing import Preprocessing

    manifest = read_manifest(root / "omniglot")
    assert (manifest.preprocessing, manifest.resized) == (Preprocessing(28, 28, 1, ink="bright"), 32460)


def test_omniglot_one_zip_alone_has_its_own_classes_only(shared, pack):
    packed = pack("omniglot", shared / "omniglot" / "images_evaluation.zip", ink="dark", size=8, filter="box")
    assert len(packed.manifest.classes) == 659
    assert packed.manifest.preprocessing.ink == "dark"
    assert np.median(packed.pixels) > 200


def test_omniglot_extracted_folders_give_the_same_pixels(shared, tmp_path, pack, make):
    from tapnet.data.readers.files import open_file_tree

    zipped = open_file_tree(shared / "omniglot" / "images_background.zip")
    few = [name for name in zipped.names if "/Greek/" in name]
    folder = make.tree(tmp_path / "extracted", dict(zipped.read(set(few))))
    archive = make.zip(tmp_path / "few.zip", dict(zipped.read(set(few))))
    assert pack("omniglot", folder).manifest.sha256 == pack("omniglot", archive, name="zip").manifest.sha256

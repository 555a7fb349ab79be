import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapnet.data import ImageSet


def image_set(rotations=1, side=5):
    pixels = np.random.default_rng(0).integers(0, 256, (12, side, 5, 3), dtype=np.uint8)
    rows, labels = np.array([1, 4, 7, 10]), np.array([0, 0, 1, 1])
    return ImageSet("set", "test", pixels, rows, labels, ("a", "b"), "0" * 64, rotations)


@given(st.lists(st.integers(0, 15), min_size=1, max_size=20))
def test_gather_rotates_each_image_as_its_position_says(positions):
    images = image_set(rotations=4)
    for position, found in zip(positions, images.gather(np.array(positions)), strict=True):
        rotation, row = divmod(position, 4)
        assert np.array_equal(found, np.rot90(images.pixels[images.rows[row]], rotation))


def test_gather_keeps_the_shape_of_the_positions():
    assert image_set().gather(np.array([[0, 1, 2], [3, 2, 1]])).shape == (2, 3, 5, 5, 3)


def test_gather_leaves_the_pixels_alone():
    images = image_set(rotations=4)
    before = images.pixels.copy()
    images.gather(np.arange(16))
    assert np.array_equal(images.pixels, before)


def test_turned_classes_have_labels_and_names_of_their_own():
    images = image_set(rotations=4)
    assert images.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    assert images.class_names[3] == "b (90°)"


def test_groups_join_the_rotations_of_a_class():
    assert image_set(rotations=4).groups.tolist() == [0, 1] * 4


@pytest.mark.parametrize("rotations", [0, 2, 3])
def test_rotations_other_than_one_and_four_are_refused(rotations):
    with pytest.raises(ValueError, match=f"got {rotations}"):
        image_set(rotations)


def test_oblong_images_cannot_be_turned():
    with pytest.raises(ValueError, match="Only square images"):
        image_set(rotations=4, side=6)


def test_rows_without_labels_are_refused():
    with pytest.raises(ValueError, match="4 labels, one per row, got 3"):
        dataclasses.replace(image_set(), row_labels=np.array([0, 0, 1]))

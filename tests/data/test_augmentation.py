import pytest
import torch

from tapnet.data.augmentation import AUGMENTATIONS


@pytest.mark.parametrize("name", sorted(AUGMENTATIONS.keys() - {"window"}))
def test_augmentation_keeps_shape_and_range(name):
    images = torch.rand(5, 3, 12, 12)
    changed = AUGMENTATIONS[name](images, torch.Generator().manual_seed(0))
    assert changed.shape == images.shape
    assert changed.min() >= 0
    assert changed.max() <= 1 + 1e-5


@pytest.mark.parametrize("name", AUGMENTATIONS)
def test_augmentation_is_repeated_by_its_generator(name):
    images = torch.rand(5, 1, 12, 12)
    first, second = (AUGMENTATIONS[name](images, torch.Generator().manual_seed(3)) for _ in range(2))
    assert torch.equal(first, second)


def test_none_changes_nothing():
    images = torch.rand(2, 1, 5, 5)
    assert AUGMENTATIONS["none"](images, torch.Generator()) is images


def test_flip_mirrors_some_images_and_leaves_the_others():
    images = torch.rand(40, 1, 6, 6)
    changed = AUGMENTATIONS["flip"](images, torch.Generator().manual_seed(0))
    kept = (changed == images).all(dim=(1, 2, 3))
    mirrored = (changed == images.flip(-1)).all(dim=(1, 2, 3))
    assert (kept | mirrored).all()
    assert kept.any()
    assert mirrored.any()


def test_rotate_rotates_all_images_alike_and_each_way_in_time():
    images = torch.rand(3, 1, 6, 6)
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(40):
        changed = AUGMENTATIONS["rotate"](images, generator)
        (rotations,) = [k for k in range(4) if torch.equal(changed, images.rot90(k, (-2, -1)))]
        seen.add(rotations)
    assert seen == {0, 1, 2, 3}


def test_dihedral_lays_all_images_alike_and_each_of_eight_ways_in_time():
    images = torch.rand(3, 1, 6, 6)
    ways = [way for k in range(4) for way in (images.rot90(k, (-2, -1)), images.rot90(k, (-2, -1)).flip(-1))]
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(80):
        changed = AUGMENTATIONS["dihedral"](images, generator)
        (way,) = [k for k, expected in enumerate(ways) if torch.equal(changed, expected)]
        seen.add(way)
    assert seen == set(range(8))


def test_affine_keeps_most_of_the_sharpness_of_strokes():
    images = torch.zeros(50, 1, 28, 28)
    images[:, :, :, 10:12] = 1.0
    changed = AUGMENTATIONS["affine"](images, torch.Generator().manual_seed(0))
    assert not torch.equal(changed, images)
    assert (changed.diff(dim=-1).square().mean() / images.diff(dim=-1).square().mean()).item() > 0.6  # bilinear: 0.49


def test_window_is_a_part_of_its_image_mirrored_or_not():
    images = torch.rand(6, 3, 14, 21, generator=torch.Generator().manual_seed(3))
    windows = AUGMENTATIONS["window"](images, torch.Generator().manual_seed(0))
    assert windows.shape == (6, 3, 10, 15)
    for image, window in zip(images, windows, strict=True):
        parts = image.unfold(1, 10, 1).unfold(2, 15, 1)  # (channels, rows, columns, height, width)
        found = (parts == window[:, None, None]).all(dim=(0, 3, 4)) | (parts == window.flip(-1)[:, None, None]).all(
            dim=(0, 3, 4)
        )
        assert found.any()

import pytest
import torch

from tapnet.augmentation import AUGMENTATIONS


@pytest.mark.parametrize("name", AUGMENTATIONS)
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


def test_turn_turns_all_images_alike_and_each_way_in_time():
    images = torch.rand(3, 1, 6, 6)
    generator = torch.Generator().manual_seed(0)
    seen = set()
    for _ in range(40):
        changed = AUGMENTATIONS["turn"](images, generator)
        (quarters,) = [k for k in range(4) if torch.equal(changed, images.rot90(k, (-2, -1)))]
        seen.add(quarters)
    assert seen == {0, 1, 2, 3}

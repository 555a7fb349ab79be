import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tapnet.backbones import Conv4
from tapnet.data.augmentation import AUGMENTATIONS
from tapnet.data.batches import EpisodeBatchSampler, EpisodeImages, episode_images
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.hardware import to_device, to_float_tensor
from tapnet.methods import TapNet


def test_images_arrive_as_floats_between_0_and_1_channels_first_and_last_in_memory(blobs):
    images = to_float_tensor(blobs.pixels[:3], torch.device("cpu"))
    assert images.shape == (3, 1, 8, 8)
    assert torch.equal(images[:, 0] * 255, torch.from_numpy(blobs.pixels[:3, ..., 0]).float())
    assert images.is_contiguous(memory_format=torch.channels_last)


def test_episode_images_carry_the_labels_of_their_class(blobs):
    episode = EpisodeSampler(blobs.labels, EpisodeSpec(3, 2, 4))[0]
    batch = episode_images(blobs, episode, torch.device("cpu"))
    assert batch.support_labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert len(batch.query_images) == len(batch.query_labels) == 12
    second_of_class_1 = torch.from_numpy(blobs.pixels[episode.support[1, 1]]).float() / 255
    assert torch.equal(batch.support_images[3].permute(1, 2, 0), second_of_class_1)


def test_divisions_of_an_episode_keep_its_classes_and_use_every_image_once():
    features = torch.arange(3 * 6).float()[:, None]  # support 0 to 5, query 6 to 17, class by class
    episode = EpisodeImages(features, way=3, shot=2, query=4, classes=torch.arange(3))
    episode = episode.with_divisions(5, torch.Generator().manual_seed(0))
    classes = torch.cat([episode.support_labels, episode.query_labels])
    divided = [torch.cat(parts).flatten().long() for parts in episode.divided(features)]
    assert torch.equal(divided[0], torch.arange(18))
    assert len({tuple(order.tolist()) for order in divided}) == 5
    for order in divided:
        assert torch.equal(order.sort().values, torch.arange(18))
        assert torch.equal(classes[order], classes)


def test_a_plain_pytorch_loop_learns(blobs):
    """The loop of the class's docstring, over an ordinary dataset."""
    dataset = TensorDataset(to_float_tensor(blobs.pixels, torch.device("cpu")), torch.from_numpy(blobs.labels))
    episodes = EpisodeBatchSampler(blobs.labels, way=5, shot=1, query=3, episodes=30)
    model = TapNet(Conv4((1, 8, 8), widths=(16, 16, 16, 16)), num_references=5)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for images, _ in DataLoader(dataset, batch_sampler=episodes):
        support, query = images.split(episodes.sizes)
        loss = F.cross_entropy(model(support, episodes.support_labels, query), episodes.query_labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert len(losses) == len(episodes) == 30
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_batch_sampler_has_new_episodes_in_every_epoch_and_repeats_one_by_its_number():
    sampler = EpisodeBatchSampler(np.repeat(np.arange(9), 9), way=3, shot=1, query=2, episodes=4)
    epochs = [list(sampler) for _ in range(3)]
    assert len({tuple(batch) for epoch in epochs for batch in epoch}) == 12
    sampler.set_epoch(1)
    assert [list(sampler), list(sampler)] == epochs[1:]


def test_images_go_to_a_gpu_from_pinned_memory_without_waiting(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda self: calls.append("pinned") or self)
    monkeypatch.setattr(
        torch.Tensor, "to", lambda self, device, non_blocking: calls.append((device, non_blocking)) or self
    )
    gpu = torch.device("cuda")
    to_device(np.zeros(3), gpu)
    assert calls == ["pinned", (gpu, True)]


@pytest.mark.parametrize("name", sorted(AUGMENTATIONS.keys() - {"window"}))
def test_augmentation_keeps_shape_and_range_and_is_repeated_by_its_generator_and_none_changes_nothing(name):
    images = torch.rand(5, 3, 12, 12)
    changed, again = (AUGMENTATIONS[name](images, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(changed, again)
    assert (changed is images) == (name == "none")
    assert changed.shape == images.shape
    assert changed.min() >= 0
    assert changed.max() <= 1 + 1e-5


def test_flip_mirrors_some_images_and_leaves_the_others():
    images = torch.rand(40, 1, 6, 6)
    changed = AUGMENTATIONS["flip"](images, torch.Generator().manual_seed(0))
    kept = (changed == images).all(dim=(1, 2, 3))
    mirrored = (changed == images.flip(-1)).all(dim=(1, 2, 3))
    assert (kept | mirrored).all()
    assert kept.any()
    assert mirrored.any()


@pytest.mark.parametrize(("name", "count"), [("rotate", 4), ("dihedral", 8)])
def test_rotations_lay_all_images_alike_and_each_way_in_time(name, count):
    images, generator = torch.rand(3, 1, 6, 6), torch.Generator().manual_seed(0)
    rotated = [images.rot90(quarter, (-2, -1)) for quarter in range(4)]
    ways = [*rotated, *(image.flip(-1) for image in rotated)]
    changed = [AUGMENTATIONS[name](images, generator) for _ in range(80)]
    seen = [[way for way, expected in enumerate(ways) if torch.equal(image, expected)] for image in changed]
    assert {way for (way,) in seen} == set(range(count))


def test_window_is_a_part_of_its_image_mirrored_or_not():
    images = torch.rand(6, 3, 14, 21, generator=torch.Generator().manual_seed(3))
    windows = AUGMENTATIONS["window"](images, torch.Generator().manual_seed(0))
    assert windows.shape == (6, 3, 10, 15)
    for image, window in zip(images, windows, strict=True):
        parts = image.unfold(1, 10, 1).unfold(2, 15, 1)  # (channels, rows, columns, height, width)
        either_way = (window[:, None, None], window.flip(-1)[:, None, None])
        assert any((parts == part).all(dim=(0, 3, 4)).any() for part in either_way)

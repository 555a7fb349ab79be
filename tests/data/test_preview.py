import numpy as np
import pytest

from tapnet.data import load_dataset
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec
from tapnet.data.inspection import contact_sheet, episode_sheet


@pytest.fixture(scope="module")
def drawings():
    return load_dataset("quickdraw", "test")


def found(sheet, tile):
    """Whether the image holds this tile, enlarged twice."""
    pixels = np.asarray(sheet)[..., 0]
    wanted = tile[..., 0].repeat(2, axis=0).repeat(2, axis=1)
    windows = np.lib.stride_tricks.sliding_window_view(pixels, wanted.shape)
    starts = np.argwhere((windows[:, :, 0, 0] == wanted[0, 0]) & (windows[:, :, -1, 9] == wanted[-1, 9]))
    return any(np.array_equal(windows[tuple(start)], wanted) for start in starts)


def test_contact_sheet_shows_the_first_images_of_first_and_last_class(drawings):
    sheet = contact_sheet(drawings, classes=3, per_class=2)
    assert found(sheet, drawings.gather(np.array([0]))[0])
    assert found(sheet, drawings.gather(np.array([59 * 100 + 1]))[0])


def test_contact_sheet_of_more_classes_than_there_are_shows_all(drawings):
    whole = contact_sheet(drawings, classes=60, per_class=1)
    assert contact_sheet(drawings, classes=10**12, per_class=1).size == whole.size


def test_contact_sheet_shows_rotations_as_they_are_gathered():
    rotated = load_dataset("quickdraw", "test", rotations=4)
    sheet = contact_sheet(rotated, classes=2, per_class=1)
    assert found(sheet, rotated.gather(np.array([3 * 6000 + 5900]))[0])


def test_episode_sheet_shows_every_image_of_the_episode(drawings):
    sampler = EpisodeSampler(drawings.labels, EpisodeSpec(3, 1, 2, seed=4))
    sheet, episode = episode_sheet(drawings, sampler, 7), sampler[7]
    for positions in (episode.support, episode.query):
        assert all(found(sheet, tile) for tile in drawings.gather(positions.reshape(-1)))

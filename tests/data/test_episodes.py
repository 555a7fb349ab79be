import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapnet.data import episodes
from tapnet.data.episodes import EpisodeSampler, EpisodeSpec

LABELS = np.repeat([3, 5, 8, 9, 12, 20], [7, 9, 8, 30, 7, 11])


@given(seed=st.integers(0, 2**40), index=st.integers(0, 10**9))
def test_support_and_query_are_disjoint_and_of_their_class(seed, index):
    episode = EpisodeSampler(LABELS, EpisodeSpec(4, 2, 5, seed=seed))[index]
    both = np.concatenate([episode.support, episode.query], axis=1)
    assert len(np.unique(both)) == 4 * 7
    assert (LABELS[both] == episode.classes[:, None]).all()
    assert len(set(episode.classes)) == 4


def test_an_episode_depends_on_its_number_alone_and_a_batch_holds_the_episodes_of_its_numbers():
    sampler, other = (EpisodeSampler(LABELS, EpisodeSpec(3, 2, 3, seed=1)) for _ in range(2))
    batch = other.batch(5, 8)
    for position, index in enumerate((5, 6, 7)):
        np.testing.assert_array_equal(batch.support[position], sampler[index].support)
        np.testing.assert_array_equal(batch.query[position], sampler[index].query)


def test_the_first_episode_is_the_same_on_every_machine_and_version_and_others_are_different():
    episode = EpisodeSampler(LABELS, EpisodeSpec(3, 1, 2, seed=0))[0]
    assert episode.classes.tolist() == [20, 12, 9]
    assert episode.support.tolist() == [[62], [55], [46]]
    assert episode.query.tolist() == [[68, 63], [59, 56], [45, 27]]
    samplers = [EpisodeSampler(LABELS, EpisodeSpec(3, 1, 2, seed=seed)) for seed in range(10)]
    assert len({sampler[index].query.tobytes() for sampler in samplers for index in range(10)}) == 100


def test_images_and_classes_are_drawn_evenly():
    labels = np.repeat(np.arange(5), 6)
    batch = EpisodeSampler(labels, EpisodeSpec(2, 1, 2, seed=0)).batch(0, 6000)
    for part, expected in ((batch.support, 400), (batch.query, 800)):
        counts = np.bincount(part.reshape(-1), minlength=30)
        assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()


def test_an_episode_takes_one_class_of_a_group():
    labels = np.repeat(np.arange(8), 5)
    groups = np.array([0, 1, 2, 3, 0, 1, 2, 3])
    batch = EpisodeSampler(labels, EpisodeSpec(4, 1, 2), groups=groups).batch(0, 200)
    assert (np.sort(batch.classes % 4, axis=1) == np.arange(4)).all()
    assert set(batch.classes.reshape(-1)) == set(range(8))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"way": 7, "shot": 1, "query": 1}, "need 7 classes, the data has 6"),
        ({"way": 2, "shot": 5, "query": 5}, "need 10 images per class, class 3 has 7"),
        ({"way": 1, "shot": 1, "query": 1}, "way >= 2, got way=1"),
        ({"way": 2, "shot": 0, "query": 1}, "shot >= 1, got shot=0"),
        ({"way": 2, "shot": 1, "query": 0}, "query >= 1, got query=0"),
    ],
)
def test_what_cannot_be_drawn_is_refused_with_the_numbers(arguments, words):
    with pytest.raises(ValueError, match=words):
        EpisodeSampler(LABELS, EpisodeSpec(**arguments))


def test_many_episodes_of_large_classes_take_little_memory():
    """Shuffling all images of the classes of 2,000 episodes would take 320 MB."""
    sampler = EpisodeSampler(np.repeat(np.arange(5), 8000), EpisodeSpec(5, 1, 1))
    tracemalloc.start()
    sampler.batch(0, 2000)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 60e6


def test_a_class_of_many_images_is_drawn_from_without_writing_them_all_down(monkeypatch):
    labels = np.repeat([0, 1, 2], [40, 50, 60])
    spec = EpisodeSpec(3, 5, 15, seed=2)
    expected = EpisodeSampler(labels, spec).batch(0, 50)
    monkeypatch.setattr(episodes, "_LARGEST_POOL", 10)
    np.testing.assert_array_equal(EpisodeSampler(labels, spec).batch(0, 50).query, expected.query)

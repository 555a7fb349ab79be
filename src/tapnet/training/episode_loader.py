"""The episodes of a run as tensors; the next one is prepared while the network computes on this one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import torch

from tapnet import hardware
from tapnet.data.batches import EpisodeImages
from tapnet.data.episodes import EpisodeSampler
from tapnet.training.sources import EpisodeSource


class EpisodeLoader:
    """Episodes by number. A thread prepares the one that this process needs next.

    An episode with its augmentation is a pure function of seed and number, so it does not matter when it is prepared.
    """

    def __init__(self, source: EpisodeSource, sampler: EpisodeSampler, seed: int) -> None:
        self._source, self._sampler, self._seed = source, sampler, seed
        self._thread = ThreadPoolExecutor(1, "episodes")
        self._ahead: tuple[int, Future[EpisodeImages]] | None = None

    def __getitem__(self, index: int) -> EpisodeImages:
        ahead, following = self._ahead, index + hardware.world_size()
        episode = ahead[1].result() if ahead and ahead[0] == index else self.prepare(index)
        more = following < self._sampler.spec.episodes
        self._ahead = (following, self._thread.submit(self.prepare, following)) if more else None
        return episode

    def prepare(self, index: int) -> EpisodeImages:
        """Return the augmented images of an episode; with a frozen backbone, their features."""
        generator = torch.Generator().manual_seed(derived_seed(self._seed, index))
        return self._source.episode(index, self._sampler[index], generator)

    def close(self) -> None:
        """End the thread and drop the episode that it was preparing."""
        self._thread.shutdown(cancel_futures=True)


def derived_seed(*key: int) -> int:
    """Return a seed of 63 bits that follows from the key."""
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


@contextmanager
def seeded(*key: int) -> Iterator[None]:
    """Seed the global random state (dropout, initialization) by the key; restore it on exit."""
    with torch.random.fork_rng():
        torch.manual_seed(derived_seed(*key))
        yield

"""From indices to tensors: an episode's images for our own loop, and a batch sampler for everybody else's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from torch.utils.data import Sampler

from tapnet.data import ImageSet
from tapnet.data.episodes import Episode, EpisodeSampler

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class EpisodeImages:
    """What a method takes, and the answers."""

    support_images: Tensor
    support_labels: Tensor
    query_images: Tensor
    query_labels: Tensor


def episode_images(images: ImageSet, episode: Episode, device: torch.device = _CPU) -> EpisodeImages:
    """The images of an episode on the device, class after class."""
    way, shot = episode.support.shape
    both = np.concatenate([episode.support.reshape(-1), episode.query.reshape(-1)])
    support, query = to_float_tensor(images.gather(both), device).split([way * shot, episode.query.size])
    return EpisodeImages(
        support, class_labels(way, shot, device), query, class_labels(way, episode.query.shape[1], device)
    )


def to_float_tensor(pixels: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Float images (n, channels, height, width) in [0, 1], channels last in memory, from uint8 (n, h, w, c).

    They travel to the device as uint8, a quarter of the bytes.
    """
    return torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2).float().div_(255)


def class_labels(way: int, each: int, device: torch.device | None = None) -> Tensor:
    """0, 0, …, 1, 1, …: labels of `each` images of every class, class after class."""
    return torch.arange(way, device=device).repeat_interleave(each)


class EpisodeBatchSampler(Sampler[list[int]]):
    """Batches of indices for a `DataLoader` over any dataset with known labels: one episode a batch.

    A batch holds way·shot support images, class after class, then way·query query images likewise::

        episodes = EpisodeBatchSampler(labels, way=20, shot=1, query=5, episodes=1000)
        for images, _ in DataLoader(dataset, batch_sampler=episodes):
            support, query = images.split(episodes.sizes)
            loss = F.cross_entropy(model(support, episodes.support_labels, query), episodes.query_labels)
    """

    def __init__(self, labels: ArrayLike, way: int, shot: int, query: int, episodes: int, seed: int = 0) -> None:
        self.sampler = EpisodeSampler(labels, way, shot, query, seed)
        self.episodes = episodes
        self.sizes = [way * shot, way * query]
        self.support_labels = class_labels(way, shot)
        self.query_labels = class_labels(way, query)

    def __len__(self) -> int:
        return self.episodes

    def __iter__(self) -> Iterator[list[int]]:
        for index in range(self.episodes):
            episode = self.sampler[index]
            yield [*episode.support.reshape(-1).tolist(), *episode.query.reshape(-1).tolist()]

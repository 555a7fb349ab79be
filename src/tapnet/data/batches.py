"""From indices to tensors: the images of an episode for our training loop, and a batch sampler for other loops."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import Sampler

from tapnet.data.episodes import Episode, EpisodeSampler, EpisodeSpec
from tapnet.data.packed import ImageSet
from tapnet.hardware import to_device, to_float_tensor

_CPU = torch.device("cpu")


class EpisodeImages(NamedTuple):
    """The images of one episode as one tensor: support first, then query, each class by class.

    With a frozen backbone, features take the place of the images.
    """

    images: Tensor  # (way · (shot + query), channels, height, width)
    way: int
    shot: int
    query: int
    classes: Tensor  # (way,), which classes of their split they are
    orders: Tensor | None = None  # (divisions - 1, way, shot + query), other orders of the images of each class
    targets: Tensor | None = None  # (divisions, way · query, way), probabilities to learn in place of the query labels

    @property
    def sizes(self) -> list[int]:
        """The numbers of support and of query images."""
        return [self.way * self.shot, self.way * self.query]

    def with_divisions(self, divisions: int, generator: torch.Generator) -> EpisodeImages:
        """Return the episode with further divisions into support and query, drawn at random: `divisions` in all."""
        if divisions == 1:
            return self
        keys = torch.rand(divisions - 1, self.way, self.shot + self.query, generator=generator)
        return self._replace(orders=keys.argsort(dim=-1).to(self.images.device))

    def divided(self, features: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield support and query features: first as the episode has them, then by each of its other orders."""
        support, query = features.split(self.sizes)
        yield support, query
        if self.orders is None:
            return
        by_class = [part.unflatten(0, (self.way, -1)) for part in (support, query)]
        together = torch.cat(by_class, dim=1)  # (way, shot + query, ...)
        rows = torch.arange(self.way, device=features.device)[:, None]
        for order in self.orders:
            shuffled = together[rows, order]
            yield shuffled[:, : self.shot].flatten(0, 1), shuffled[:, self.shot :].flatten(0, 1)

    @property
    def support_images(self) -> Tensor:
        return self.images[: self.way * self.shot]

    @property
    def query_images(self) -> Tensor:
        return self.images[self.way * self.shot :]

    @property
    def support_labels(self) -> Tensor:
        return class_labels(self.way, self.shot, self.images.device)

    @property
    def query_labels(self) -> Tensor:
        return class_labels(self.way, self.query, self.images.device)

    @property
    def split_labels(self) -> Tensor:
        """The class of every image among those of its split."""
        return torch.cat([self.classes.repeat_interleave(count) for count in (self.shot, self.query)])


def episode_images(images: ImageSet, episode: Episode, device: torch.device = _CPU) -> EpisodeImages:
    """Return the images of an episode on the device, as floats in [0, 1]."""
    tensor = to_float_tensor(images.gather(episode.indices), device)
    return EpisodeImages(tensor, *episode.sizes, to_device(episode.classes, device))


def class_labels(way: int, per_class: int, device: torch.device | None = None) -> Tensor:
    """Return 0, 0, …, 1, 1, …: labels of `per_class` images of every class, class by class."""
    return torch.arange(way, device=device).repeat_interleave(per_class)


class EpisodeBatchSampler(Sampler[list[int]]):
    """Batches of indices for a `DataLoader` over any dataset with known labels: one episode per batch.

    A batch holds way·shot support images, class by class, then way·query query images likewise::

        sampler = EpisodeBatchSampler(labels, way=20, shot=1, query=5, episodes=1000)
        for images, _ in DataLoader(dataset, batch_sampler=sampler):
            support, query = images.split(sampler.sizes)
            loss = F.cross_entropy(model(support, sampler.support_labels, query), sampler.query_labels)

    Epoch e has the episodes e · `episodes`, e · `episodes` + 1, … of the seed. Every iteration is a new epoch: the one
    after the last, or the one that `set_epoch` named, from which a resumed training continues.
    """

    def __init__(self, labels: ArrayLike, way: int, shot: int, query: int, episodes: int, seed: int = 0) -> None:
        self.sampler = EpisodeSampler(labels, EpisodeSpec(way, shot, query, episodes, seed))
        self.sizes = [way * shot, way * query]
        self.support_labels = class_labels(way, shot)
        self.query_labels = class_labels(way, query)
        self.epoch = 0  # of the next iteration

    def __len__(self) -> int:
        return self.sampler.spec.episodes

    def set_epoch(self, epoch: int) -> None:
        """Make `epoch` the epoch of the next iteration, as in PyTorch's `DistributedSampler`."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        start = self.epoch * len(self)
        self.epoch += 1
        return (self.sampler[start + index].indices.tolist() for index in range(len(self)))

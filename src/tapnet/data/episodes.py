"""Episodes: which images are support and which are query. Indices only; no image is touched here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Indices = NDArray[np.int64]


class NotEnoughDataError(ValueError):
    """Data with fewer classes or images than its episodes need."""


@dataclass(frozen=True)
class Episode:
    """Positions in a dataset's label array; row k belongs to class `classes[k]`, which the episode calls k."""

    classes: Indices  # (way,)
    support: Indices  # (way, shot)
    query: Indices  # (way, query)


@dataclass(frozen=True)
class EpisodeBatch:
    """Several episodes of one shape, as one array each."""

    classes: Indices  # (episodes, way)
    support: Indices  # (episodes, way, shot)
    query: Indices  # (episodes, way, query)

    def __len__(self) -> int:
        return len(self.classes)

    def episode(self, index: int) -> Episode:
        return Episode(self.classes[index], self.support[index], self.query[index])

    def among(self, rows: Indices) -> EpisodeBatch:
        """The same episodes when the sampler saw only these rows of a larger label array."""
        return EpisodeBatch(self.classes, rows[self.support], rows[self.query])


class EpisodeSampler:
    """Episode i as a pure function of (labels, way, shot, query, seed, i).

    There is no state to save: to resume is to start at another i, ranks of a cluster take every n-th i, and two methods
    meet the same episodes by sharing a seed. The bits come from Philox, keyed by seed and episode, and are used raw:
    NumPy promises those across its versions, and does not promise `Generator.choice`.

    `groups` names a group for each class, of which an episode takes at most one class (the rotations of one character).
    """

    def __init__(
        self, labels: ArrayLike, way: int, shot: int, query: int, seed: int = 0, groups: ArrayLike | None = None
    ) -> None:
        for name, value, least in (("way", way, 2), ("shot", shot, 1), ("query", query, 1), ("seed", seed, 0)):
            if value < least:
                raise ValueError(f"An episode needs {name} >= {least}, got {name}={value}.")
        if seed >= 2**64:
            raise ValueError(f"A seed is less than 2**64, got {seed}.")
        label_array = np.asarray(labels)
        self.way, self.shot, self.query, self.seed = way, shot, query, seed
        self.classes, counts = np.unique(label_array, return_counts=True)
        self._sizes = counts.astype(np.int64)
        self._members = np.argsort(label_array, kind="stable").astype(np.int64)
        self._offsets = np.concatenate([[0], np.cumsum(self._sizes)[:-1]]).astype(np.int64)
        self._groups = _group_table(
            np.arange(len(self.classes)) if groups is None else np.asarray(groups), self.classes
        )
        self._check_what_cannot_be_drawn(grouped=groups is not None)

    def _check_what_cannot_be_drawn(self, grouped: bool) -> None:
        if len(self._groups.sizes) < self.way:
            kind = "groups of classes" if grouped else "classes"
            raise NotEnoughDataError(
                f"{self.way}-way episodes need {self.way} {kind}, the data has {len(self._groups.sizes)}: lower `way`."
            )
        needed = self.shot + self.query
        if self._sizes.min() < needed:
            poorest = int(self._sizes.argmin())
            raise NotEnoughDataError(
                f"{self.shot}-shot {self.query}-query episodes need {needed} images a class, class "
                f"{self.classes[poorest]} has {self._sizes[poorest]}: lower `shot` or `query`."
            )

    def __getitem__(self, index: int) -> Episode:
        return self.batch(index, index + 1).episode(0)

    def __iter__(self) -> Iterator[Episode]:
        index = 0
        while True:
            yield self[index]
            index += 1

    def batch(self, start: int, stop: int, step: int = 1) -> EpisodeBatch:
        """Episodes start, start + step, … before stop; each is the one that `self[i]` gives."""
        if start < 0:
            raise ValueError(f"Episodes are numbered from 0, got {start}.")
        taken = self.shot + self.query
        bits = self._bits(range(start, stop, step), self.way * (2 + taken))
        group_bits, class_bits, image_bits = np.split(bits, [self.way, 2 * self.way], axis=1)

        count = len(bits)
        groups = _draw(group_bits, np.full(count, len(self._groups.sizes)))  # (count, way)
        within = (class_bits % self._groups.sizes[groups].astype(np.uint64)).astype(np.int64)
        classes = self._groups.members[self._groups.offsets[groups] + within]

        rows = classes.reshape(-1)
        picks = _draw(image_bits.reshape(count * self.way, taken), self._sizes[rows])
        images = self._members[self._offsets[rows][:, None] + picks].reshape(count, self.way, taken)
        return EpisodeBatch(self.classes[classes], images[..., : self.shot], images[..., self.shot :])

    def _bits(self, indices: range, count: int) -> NDArray[np.uint64]:
        """Raw bits (episodes, count), each row of a generator keyed by seed and episode; one is re-keyed for all."""
        bits = np.empty((len(indices), count), dtype=np.uint64)
        generator = np.random.Philox(key=np.array([self.seed, 0], dtype=np.uint64))
        fresh: Any = generator.state
        for row, index in enumerate(indices):
            fresh["state"]["key"][1] = index
            generator.state = fresh
            bits[row] = generator.random_raw(count)
        return bits


@dataclass(frozen=True)
class _Groups:
    members: Indices  # class positions, group after group
    offsets: Indices
    sizes: Indices


def _group_table(groups: NDArray[np.generic], classes: NDArray[np.generic]) -> _Groups:
    if len(groups) != len(classes):
        raise ValueError(f"`groups` needs one entry a class, that is {len(classes)}, got {len(groups)}.")
    _, group_of = np.unique(groups, return_inverse=True)
    sizes = np.bincount(group_of).astype(np.int64)
    return _Groups(np.argsort(group_of, kind="stable"), np.cumsum(sizes) - sizes, sizes)


def _draw(bits: NDArray[np.uint64], sizes: Indices) -> Indices:
    """Ordered samples without replacement: row r takes as many of range(sizes[r]) as it has bits.

    The first steps of a Fisher-Yates shuffle, all rows at once. The remainder of 64 bits favours no number by more than
    one in 10^14.
    """
    steps = np.arange(bits.shape[1])
    others = steps + (bits % (sizes[:, None] - steps).astype(np.uint64)).astype(np.int64)
    width = int(sizes.max())
    pool = np.tile(np.arange(width, dtype=np.int32), len(bits))  # 32 bits: this is what takes the time
    starts = np.arange(len(bits)) * width
    for step in steps:
        here, there = starts + step, starts + others[:, step]
        pool[here], pool[there] = pool[there], pool[here]
    return pool.reshape(len(bits), width)[:, : bits.shape[1]].astype(np.int64)

"""Episodes: which images are support and which are query. Indices only; no image is read here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tapnet.errors import UserError

Indices = NDArray[np.int64]
_LARGEST_POOL = 2**23  # numbers shuffled at once, 32 MB


class NotEnoughDataError(UserError):
    """Data with fewer classes or images than its episodes need."""


@dataclass(frozen=True)
class EpisodeSpec:
    """The number of classes, of support and query images per class, of episodes, and the seed."""

    way: int = 5
    shot: int = 5
    query: int = 15
    episodes: int = 600
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("way", 2), ("shot", 1), ("query", 1), ("episodes", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise UserError(f"Episodes need {name} >= {least}, got {name}={getattr(self, name)}.")
        if self.seed >= 2**64:
            raise UserError(f"A seed is less than 2**64, got {self.seed}.")


@dataclass(frozen=True)
class Episode:
    """Positions in a dataset's label array; row k belongs to class `classes[k]`, whose label in the episode is k.

    A batch of episodes has one more dimension in front.
    """

    classes: Indices  # (way,)
    support: Indices  # (way, shot)
    query: Indices  # (way, query)

    @property
    def indices(self) -> Indices:
        """All positions: support first, then query, each class by class."""
        return np.concatenate([self.support.reshape(-1), self.query.reshape(-1)])

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(way, shot, query)."""
        return *self.support.shape, self.query.shape[1]


class EpisodeSampler:
    """Episode i as a pure function of labels, spec and i.

    There is no state to save: resuming means starting at another i, ranks of a cluster take every n-th i, and two
    methods get the same episodes by sharing a seed. Raw bits come from Philox, keyed by seed and episode: NumPy
    guarantees them across its versions, but not the results of `Generator.choice`.

    `groups` has a group for each class; an episode takes at most one class of a group (the rotations of a character).
    """

    def __init__(self, labels: ArrayLike, spec: EpisodeSpec, groups: ArrayLike | None = None) -> None:
        self.spec, self._images = spec, _members(np.asarray(labels))
        self.classes, sizes = self._images.keys, self._images.sizes
        self._groups = _members(np.arange(len(self.classes)) if groups is None else np.asarray(groups))
        if len(self._groups.members) != len(self.classes):
            got = len(self._groups.members)
            raise UserError(f"`groups` needs one entry per class, that is {len(self.classes)}, got {got}.")
        if len(self._groups.sizes) < spec.way:
            kind = "classes" if groups is None else "groups of classes"
            raise NotEnoughDataError(
                f"{spec.way}-way episodes need {spec.way} {kind}, the data has {len(self._groups.sizes)}: lower `way`."
            )
        if sizes.min() < (needed := spec.shot + spec.query):
            raise NotEnoughDataError(
                f"{spec.shot}-shot {spec.query}-query episodes need {needed} images per class, class "
                f"{self.classes[sizes.argmin()]} has {sizes.min()}: lower `shot` or `query`."
            )

    def __getitem__(self, index: int) -> Episode:
        batch = self.batch(index, index + 1)
        return Episode(batch.classes[0], batch.support[0], batch.query[0])

    def batch(self, start: int, stop: int) -> Episode:
        """Return the episodes start, start + 1, … before stop as a batch, each equal to `self[i]`."""
        if start < 0 or stop > 2**64:
            raise UserError(f"Episodes are numbered from 0 to 2**64 - 1, got {start}.")
        way, shot, taken = self.spec.way, self.spec.shot, self.spec.shot + self.spec.query
        bits = self._bits(range(start, stop), way * (2 + taken))
        group_bits, class_bits, image_bits = np.split(bits, [way, 2 * way], axis=1)

        groups = _draw(group_bits, np.full(len(bits), len(self._groups.sizes)))  # (episodes, way)
        within = (class_bits % self._groups.sizes[groups].astype(np.uint64)).astype(np.int64)
        classes = self._groups.members[self._groups.offsets[groups] + within]

        rows = classes.reshape(-1)
        picks = _draw(image_bits.reshape(-1, taken), self._images.sizes[rows])
        images = self._images.members[self._images.offsets[rows][:, None] + picks].reshape(-1, way, taken)
        return Episode(self.classes[classes], images[..., :shot], images[..., shot:])

    def _bits(self, indices: range, count: int) -> NDArray[np.uint64]:
        """Return raw bits (episodes, count), each row from the generator keyed by seed and episode."""
        bits = np.empty((len(indices), count), dtype=np.uint64)
        generator = np.random.Philox(key=np.array([self.spec.seed, 0], dtype=np.uint64))
        fresh: Any = generator.state
        for row, index in enumerate(indices):
            fresh["state"]["key"][1] = index
            generator.state = fresh
            bits[row] = generator.random_raw(count)
        return bits


class _Members(NamedTuple):
    """The positions of each key in an array: of the images of a class, or the classes of a group."""

    keys: NDArray[Any]
    members: Indices  # positions, key after key
    offsets: Indices  # where in `members` those of each key start
    sizes: Indices


def _members(array: NDArray[Any]) -> _Members:
    keys, sizes = np.unique(array, return_counts=True)
    sizes = sizes.astype(np.int64)
    return _Members(keys, np.argsort(array, kind="stable").astype(np.int64), np.cumsum(sizes) - sizes, sizes)


def _draw(bits: NDArray[np.uint64], sizes: Indices) -> Indices:
    """Return ordered samples without replacement: row r takes as many of range(sizes[r]) as it has bits.

    These are the first steps of a Fisher-Yates shuffle, for all rows at once. The modulo of 64 bits favors no number by
    more than one in 10^14. For long ranges only the swapped numbers are kept.
    """
    length, taken = bits.shape
    steps = np.arange(taken)
    others = steps + (bits % (sizes[:, None] - steps).astype(np.uint64)).astype(np.int64)
    width = int(sizes.max())
    if length * width > _LARGEST_POOL:
        return np.array([_sparse_draw(row) for row in others], dtype=np.int64).reshape(length, taken)
    pool = np.tile(np.arange(width, dtype=np.int32), length)  # 32 bits: this is what takes the time
    starts = np.arange(length) * width
    for step in steps:
        here, there = starts + step, starts + others[:, step]
        pool[here], pool[there] = pool[there], pool[here]
    return pool.reshape(length, width)[:, :taken].astype(np.int64)


def _sparse_draw(others: Indices) -> list[int]:
    """Return the sample that the same swaps give, without the array of the whole range."""
    moved: dict[int, int] = {}
    sample = []
    for step, other in enumerate(others.tolist()):
        sample.append(moved.get(other, other))
        moved[other] = moved.get(step, step)
    return sample

"""One split of a dataset: pixels, labels, class names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tapnet.data.episodes import EpisodeSampler, EpisodeSpec, Indices
from tapnet.data.preprocessing import Preprocessing
from tapnet.errors import UserError


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet:
    """Images (count, height, width, channels) of uint8, perhaps memory-mapped, and the class of each.

    `rows` are the rows of `pixels` that belong to this split, so that a split of a packed file copies nothing.
    `rotations` = 4 adds the rotations by 90, 180 and 270 degrees as classes of their own: position `t * len(rows) + i`
    is row i rotated t times, its label `t * len(names) + class`. They are rotated when gathered, never stored.
    """

    name: str
    split: str
    pixels: NDArray[np.uint8]
    rows: Indices
    row_labels: Indices
    names: tuple[str, ...]
    fingerprint: str  # sha-256 of pixels, rows and labels, recorded with results
    rotations: int = 1
    one_rotation_per_class: bool = False  # whether an episode takes at most one rotation of a class
    preprocessing: Preprocessing | None = None  # how files became pixels, if known

    def __post_init__(self) -> None:
        if len(self.rows) != len(self.row_labels):
            raise UserError(f"Expected {len(self.rows)} labels, one per row, got {len(self.row_labels)}.")
        if self.rotations not in (1, 4):
            raise UserError(f"`rotations` is 1 (as drawn) or 4 (with rotations), got {self.rotations}.")
        if self.rotations == 4 and self.pixels.shape[1] != self.pixels.shape[2]:
            raise UserError(f"Only square images can be rotated, got {self.pixels.shape[1:3]}.")

    def __repr__(self) -> str:
        return f"<ImageSet {self.name}/{self.split}: {len(self)} images of {len(self.class_names)} classes>"

    def __len__(self) -> int:
        return self.rotations * len(self.rows)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(channels, height, width), as networks expect it."""
        height, width, channels = self.pixels.shape[1:]
        return channels, height, width

    @property
    def class_names(self) -> tuple[str, ...]:
        if self.rotations == 1:
            return self.names
        return tuple(f"{name} ({90 * quarter}°)" for quarter in range(4) for name in self.names)

    @cached_property
    def labels(self) -> Indices:
        """The class of every position, rotations included."""
        shifts = np.arange(self.rotations, dtype=np.int64)[:, None] * len(self.names)
        return (shifts + self.row_labels).reshape(-1)

    @property
    def groups(self) -> Indices:
        """For every class, the class of which it is a rotation."""
        return np.tile(np.arange(len(self.names), dtype=np.int64), self.rotations)

    def episodes(self, way: int, shot: int, query: int, seed: int = 0) -> EpisodeSampler:
        """Return the sampler of this split's episodes; see `sampler` for an EpisodeSpec."""
        return self.sampler(EpisodeSpec(way, shot, query, seed=seed))

    def sampler(self, spec: EpisodeSpec) -> EpisodeSampler:
        return EpisodeSampler(self.labels, spec, groups=self.groups if self.one_rotation_per_class else None)

    def gather(self, indices: Indices) -> NDArray[np.uint8]:
        """Return the images at these positions, (*indices.shape, height, width, channels), reading no others."""
        flat = indices.reshape(-1)
        rotation, row = np.divmod(flat, len(self.rows))
        images = np.asarray(self.pixels[self.rows[row]])
        for number in range(1, self.rotations):
            rotated = rotation == number
            images[rotated] = np.rot90(images[rotated], number, axes=(1, 2))
        return images.reshape(*indices.shape, *images.shape[1:])

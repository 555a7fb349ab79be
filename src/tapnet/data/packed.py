"""A packed dataset on disk, and one split of it in use.

In the folder of its name, `images.npy` is one uint8 array (rows, height, width, channels), class after class, opened as
a memory map; `manifest.json` says what each row is; `rows.txt` names the file that each row came from; `verified.json`
records size and time of `images.npy` when its digest was last checked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapnet.data.episodes import EpisodeSampler, EpisodeSpec, Indices
from tapnet.data.preprocessing import Preprocessing
from tapnet.data.readers import Splits
from tapnet.errors import NotFoundError, UserError
from tapnet.paths import write_atomically

FORMAT = 1
IMAGES, MANIFEST, ROWS, VERIFIED = "images.npy", "manifest.json", "rows.txt", "verified.json"


class UnknownSplitError(UserError):
    """The dataset has no classes in the requested split."""


@dataclass(frozen=True)
class Manifest:
    """What is known about packed images. Classes follow each other in this order, each with its number of rows."""

    name: str
    dataset: str  # the entry of DATASETS that made it
    source: str  # what it was read from
    preprocessing: Preprocessing
    resized: int  # images that had another size
    classes: Mapping[str, int]
    splits: Splits
    left_out: Mapping[str, str]  # row number, as text: why its image could not be read; the row is unused
    notes: tuple[str, ...]
    sha256: str  # of images.npy
    tapnet: str  # version that packed it
    format: int = FORMAT

    @property
    def rows(self) -> int:
        return sum(self.classes.values())

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def read_manifest(folder: Path) -> Manifest:
    """Return the manifest of a packed dataset; raise UserError if this version cannot read it."""
    path = folder / MANIFEST
    if not path.is_file():
        raise NotFoundError(f"{folder} holds no packed dataset (no {MANIFEST}).")
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if content.get("format") != FORMAT:
            raise UserError(f"format {content.get('format')}, and this version reads {FORMAT}")
        splits = {split: tuple(names) for split, names in content.pop("splits").items()}
        preprocessing, notes = Preprocessing.from_dict(content.pop("preprocessing")), tuple(content.pop("notes"))
        return Manifest(splits=splits, preprocessing=preprocessing, notes=notes, **content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be used ({error}): prepare the dataset again.", parameter="overwrite") from None


@dataclass(frozen=True)
class Packed:
    """A packed dataset, open for reading."""

    folder: Path
    manifest: Manifest

    @cached_property
    def pixels(self) -> NDArray[np.uint8]:
        """All rows as a memory map; raise UserError if they are not those that were packed."""
        path = self.folder / IMAGES
        try:
            pixels: NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path} cannot be read ({error}): prepare it again.", parameter="overwrite") from None
        try:
            verified = json.loads((self.folder / VERIFIED).read_text("utf-8"))
        except (OSError, ValueError):
            verified = None
        if verified != self._stamp():
            self.verify()
        return pixels

    def verify(self) -> None:
        """Raise UserError if the images are not those that were packed, by their sha-256; record that they are."""
        if (digest := self.digest()) != self.manifest.sha256:
            raise UserError(
                f"The images in {self.folder} are damaged or were replaced: expected sha-256 {self.manifest.sha256}, "
                f"got {digest}. Prepare them again.",
                parameter="overwrite",
            )
        self.record_verified()

    def digest(self) -> str:
        """Return the sha-256 of the images as they are now."""
        stamp = self._stamp()
        return _sha256_at(self.folder / IMAGES, stamp["size"], stamp["mtime_ns"])

    def record_verified(self) -> None:
        """Record that the images, as they are now, are those that were packed."""
        with suppress(OSError):  # a folder that cannot be written is verified by every process
            write_atomically(self.folder / VERIFIED, json.dumps(self._stamp()).encode())

    def _stamp(self) -> dict[str, Any]:
        status = (self.folder / IMAGES).stat()
        return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": self.manifest.sha256}

    @cached_property
    def rows_by_class(self) -> dict[str, Indices]:
        """The rows that hold an image, for each class that has any."""
        blank = np.array(sorted(map(int, self.manifest.left_out)), dtype=np.int64)
        ends = np.cumsum(list(self.manifest.classes.values()), dtype=np.int64)
        parts = np.split(np.arange(self.manifest.rows, dtype=np.int64), ends[:-1])
        used = (part[~np.isin(part, blank)] if len(blank) else part for part in parts)
        return {name: rows for name, rows in zip(self.manifest.classes, used, strict=True) if len(rows)}

    def row_names(self) -> list[str]:
        """Return the name of the file that each row came from."""
        return (self.folder / ROWS).read_text("utf-8").split("\n")

    def image_set(self, split: str, rotations: int = 1, one_rotation_per_class: bool = False) -> ImageSet:
        """Return one split, `trainval` (train and val together) or `all`, without classes that have no images."""
        manifest = self.manifest
        both = tuple(sorted({*manifest.splits.get("train", ()), *manifest.splits.get("val", ())}))
        choices = {**manifest.splits, "trainval": both, "all": tuple(manifest.classes)}
        if split not in choices:
            raise UnknownSplitError(f"Dataset {manifest.name!r} has the splits {', '.join(choices)}, got {split!r}.")
        rows = {name: self.rows_by_class[name] for name in choices[split] if name in self.rows_by_class}
        if not rows:
            raise UnknownSplitError(
                f"The packed {manifest.name} has no class of split {split!r}: its source was incomplete."
            )
        all_rows = np.concatenate(list(rows.values()))
        labels = np.repeat(np.arange(len(rows), dtype=np.int64), list(map(len, rows.values())))
        fingerprint = hashlib.sha256(manifest.sha256.encode() + all_rows.tobytes() + labels.tobytes()).hexdigest()
        return ImageSet(
            name=manifest.name,
            split=split,
            pixels=self.pixels,
            rows=all_rows,
            row_labels=labels,
            names=tuple(rows),
            fingerprint=fingerprint,
            rotations=rotations,
            one_rotation_per_class=one_rotation_per_class,
            preprocessing=manifest.preprocessing,
        )


def open_packed(folder: Path) -> Packed:
    """Return the packed dataset in a folder."""
    return Packed(folder, read_manifest(folder))


def is_packed(folder: Path) -> bool:
    """Return whether a complete packed dataset is there."""
    return (folder / MANIFEST).is_file()


@cache
def _sha256_at(path: Path, size: int, mtime_ns: int) -> str:  # noqa: ARG001
    return sha256_of(path)


def sha256_of(path: Path) -> str:
    """Return the sha-256 of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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

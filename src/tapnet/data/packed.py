"""A packed dataset on disk: `images.npy`, `manifest.json`, `rows.txt` and `verified.json` in a folder of its name.

`images.npy` is one uint8 array (rows, height, width, channels), class after class, opened as a memory map; the manifest
says what each row is; `rows.txt` names the file that each row came from; `verified.json` records size and time of
`images.npy` when its digest was last checked.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapnet.data.episodes import Indices
from tapnet.data.image_set import ImageSet
from tapnet.data.preprocessing import Preprocessing
from tapnet.data.source import Splits, abbreviate
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
        """All rows as a memory map; raise UserError if they are not those that the manifest describes."""
        path = self.folder / IMAGES
        wanted = (self.manifest.rows, *self.manifest.preprocessing.shape)
        try:
            if path.stat().st_size < math.prod(wanted):  # reading beyond its end would kill the process
                raise UserError(f"cut off: {path.stat().st_size:,} bytes of at least {math.prod(wanted):,} are there")
            pixels: NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{path} cannot be read ({error}): prepare it again.", parameter="overwrite") from None
        if pixels.shape != wanted or pixels.dtype != np.uint8:
            raise UserError(
                f"Expected uint8 {wanted} in {path}, got {pixels.dtype} {pixels.shape}: prepare it again.",
                parameter="overwrite",
            )
        self.check_unchanged()
        return pixels

    def check_unchanged(self) -> None:
        """Raise UserError if the images are not those that were packed.

        Their sha-256 is computed only if the size or time of the file has changed since the last check.
        """
        stamp = self._stamp()
        if self._verified() != stamp:
            self.check_digest(_sha256_at(self.folder / IMAGES, stamp["size"], stamp["mtime_ns"]))
            self.record_verified()

    def check_digest(self, found: str) -> None:
        """Raise UserError if this sha-256 is not that of the images that were packed."""
        if found != self.manifest.sha256:
            raise UserError(
                f"The images in {self.folder} are damaged or were replaced: expected sha-256 {self.manifest.sha256}, "
                f"got {found}. Prepare them again.",
                parameter="overwrite",
            )

    def record_verified(self) -> None:
        """Record that the images, as they are now, are those that were packed."""
        with suppress(OSError):  # a folder that cannot be written is verified by every process
            write_atomically(self.folder / VERIFIED, json.dumps(self._stamp()).encode())

    def _stamp(self) -> dict[str, Any]:
        status = (self.folder / IMAGES).stat()
        return {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "sha256": self.manifest.sha256}

    def _verified(self) -> Any:
        try:
            return json.loads((self.folder / VERIFIED).read_text("utf-8"))
        except (OSError, ValueError):
            return None

    @cached_property
    def starts(self) -> dict[str, int]:
        """The first row of each class."""
        ends = np.cumsum(list(self.manifest.classes.values()), dtype=np.int64)
        return {name: int(end) - count for (name, count), end in zip(self.manifest.classes.items(), ends, strict=True)}

    @cached_property
    def classes(self) -> set[str]:
        """The classes that have an image."""
        return {name for name in self.manifest.classes if len(self.rows_of(name))}

    def rows_of(self, name: str) -> Indices:
        """Return the rows of a class that hold an image."""
        rows = np.arange(self.manifest.classes[name], dtype=np.int64) + self.starts[name]
        return rows[~np.isin(rows, self._blank)] if len(self._blank) else rows

    @cached_property
    def _blank(self) -> Indices:
        return np.array(sorted(map(int, self.manifest.left_out)), dtype=np.int64)

    def digest(self) -> str:
        """Return the sha-256 of the images as they are now."""
        return sha256_of(self.folder / IMAGES)

    def row_names(self) -> list[str]:
        """Return the name of the file that each row came from."""
        return (self.folder / ROWS).read_text("utf-8").split("\n")

    def image_set(self, split: str, rotations: int = 1) -> ImageSet:
        """Return one split, `trainval` (train and val together) or `all`, without classes that have no images."""
        manifest = self.manifest
        both = tuple(sorted({*manifest.splits.get("train", ()), *manifest.splits.get("val", ())}))
        choices = {**manifest.splits, "trainval": both, "all": tuple(manifest.classes)}
        if split not in choices:
            raise UnknownSplitError(f"Dataset {manifest.name!r} has the splits {', '.join(choices)}, got {split!r}.")
        rows = {name: found for name in choices[split] if len(found := self.rows_of(name))}
        if not rows:
            raise UnknownSplitError(
                f"The packed {manifest.name} has no class of split {split!r}: its source was incomplete."
            )
        all_rows = np.concatenate(list(rows.values()))
        labels = np.repeat(np.arange(len(rows), dtype=np.int64), [len(found) for found in rows.values()])
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
            preprocessing=manifest.preprocessing,
        )


def open_packed(folder: Path) -> Packed:
    """Return the packed dataset in a folder."""
    return Packed(folder, read_manifest(folder))


def is_packed(folder: Path) -> bool:
    """Return whether a complete packed dataset is there."""
    return (folder / MANIFEST).is_file()


def check_replaceable(folder: Path) -> None:
    """Raise UserError if a packed dataset in the place of this folder would delete files of other kinds."""
    names = [path.name for path in (folder.iterdir() if folder.is_dir() else [folder]) if path.exists()]
    others = [name for name in names if name not in (IMAGES, MANIFEST, ROWS, VERIFIED) and not name.startswith(".")]
    if others:
        raise UserError(
            f"{folder} holds what is not a prepared dataset and would be deleted ({abbreviate(sorted(others), 3)}): "
            "give another name, or another folder for prepared datasets."
        )


@cache
def _sha256_at(path: Path, size: int, mtime_ns: int) -> str:  # noqa: ARG001
    return sha256_of(path)


def sha256_of(path: Path) -> str:
    """Return the sha-256 of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

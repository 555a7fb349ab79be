"""The packed form of a dataset on disk: `images.npy`, `manifest.json`, `rows.txt` in a folder of its name.

`images.npy` is one uint8 array (rows, height, width, channels), class after class, opened as a memory map; the manifest
says what each row is; `rows.txt` names the file that each row came from.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tapnet.data.episodes import Indices
from tapnet.data.image_set import ImageSet
from tapnet.data.preprocessing import FILTERS, FITS, Preprocessing
from tapnet.data.source import Splits
from tapnet.errors import UserError

FORMAT = 1
IMAGES, MANIFEST, ROWS = "images.npy", "manifest.json", "rows.txt"


class UnknownSplitError(UserError):
    """A dataset without classes in the split that was asked for."""


@dataclass(frozen=True)
class Manifest:
    """What is known of packed images. Classes lie in this order, each with as many rows as its number says."""

    name: str
    dataset: str  # the entry of DATASETS that made it
    source: str  # what it was read from
    preprocessing: Preprocessing
    resized: int  # images that had another size
    classes: Mapping[str, int]
    splits: Splits
    left_out: Mapping[str, str]  # row number, as text: why its image could not be read; the row is blank and unused
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
    """The manifest of a packed dataset, refused when this version cannot read it."""
    path = folder / MANIFEST
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no packed dataset (no {MANIFEST}).")
    try:
        content: dict[str, Any] = json.loads(path.read_text("utf-8"))
        if content.get("format") != FORMAT:
            raise ValueError(f"format {content.get('format')}, and this version reads {FORMAT}")
        splits = {split: tuple(names) for split, names in content.pop("splits").items()}
        if "preprocessing" not in content:
            content = _updated(content)
        preprocessing, notes = Preprocessing.from_dict(content.pop("preprocessing")), tuple(content.pop("notes"))
        return Manifest(splits=splits, preprocessing=preprocessing, notes=notes, **content)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be used ({error}): prepare the dataset again with --overwrite.") from None


def _updated(content: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest of an earlier version, whose preprocessing was spread over several fields, as one of today."""
    (height, width, channels), ink = content.pop("row_shape"), content.pop("ink")
    chosen = {"filter": content.pop("filter"), "fit": content.pop("fit")}
    known = {key: value for key, value in chosen.items() if value in (*FILTERS, *FITS)}  # else "none"
    preprocessing = Preprocessing(height, width, channels, ink=ink, **known)
    return {"source": content.pop("form"), "preprocessing": preprocessing.as_dict(), **content}


@dataclass(frozen=True)
class Packed:
    """A packed dataset, open for reading."""

    folder: Path
    manifest: Manifest

    @cached_property
    def pixels(self) -> NDArray[np.uint8]:
        """All rows, mapped and not read; a file that does not fit its manifest is refused."""
        path = self.folder / IMAGES
        wanted = (self.manifest.rows, *self.manifest.preprocessing.shape)
        try:
            if path.stat().st_size < math.prod(wanted):  # reading beyond its end would kill the process
                raise ValueError(f"cut off: {path.stat().st_size:,} bytes of at least {math.prod(wanted):,} are there")
            pixels: NDArray[np.uint8] = np.load(path, mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise ValueError(f"{path} cannot be read ({error}): prepare it again with --overwrite.") from None
        if pixels.shape != wanted or pixels.dtype != np.uint8:
            raise ValueError(f"{path} needs uint8 {wanted}, got {pixels.dtype} {pixels.shape}: prepare it again.")
        return pixels

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
        """The rows of a class, those left out aside."""
        rows = np.arange(self.manifest.classes[name], dtype=np.int64) + self.starts[name]
        return rows[~np.isin(rows, self._blank)] if len(self._blank) else rows

    @cached_property
    def _blank(self) -> Indices:
        return np.array(sorted(map(int, self.manifest.left_out)), dtype=np.int64)

    def digest(self) -> str:
        """The sha-256 of the images as they are now."""
        return sha256_of(self.folder / IMAGES)

    def row_names(self) -> list[str]:
        """The name of the file that each row came from."""
        return (self.folder / ROWS).read_text("utf-8").split("\n")

    def image_set(self, split: str, rotations: int = 1) -> ImageSet:
        """One split, `trainval` (train and val together) or `all`; classes without images are not in it."""
        kept = self.manifest
        both = tuple(sorted({*kept.splits.get("train", ()), *kept.splits.get("val", ())}))
        choices = {**kept.splits, "trainval": both, "all": tuple(kept.classes)}
        if split not in choices:
            raise UnknownSplitError(f"Dataset {kept.name!r} has the splits {', '.join(choices)}, got {split!r}.")
        rows = {name: found for name in choices[split] if len(found := self.rows_of(name))}
        if not rows:
            raise UnknownSplitError(
                f"The packed {kept.name} has no class of split {split!r}: its source was incomplete."
            )
        all_rows = np.concatenate(list(rows.values()))
        labels = np.repeat(np.arange(len(rows), dtype=np.int64), [len(found) for found in rows.values()])
        fingerprint = hashlib.sha256(kept.sha256.encode() + all_rows.tobytes() + labels.tobytes()).hexdigest()
        return ImageSet(
            name=kept.name,
            split=split,
            pixels=self.pixels,
            rows=all_rows,
            row_labels=labels,
            names=tuple(rows),
            fingerprint=fingerprint,
            rotations=rotations,
            preprocessing=kept.preprocessing,
        )


def open_packed(folder: Path) -> Packed:
    """The packed dataset in a folder."""
    return Packed(folder, read_manifest(folder))


def is_packed(folder: Path) -> bool:
    """Whether a whole packed dataset is there."""
    return (folder / MANIFEST).is_file()


def data_root(root: str | Path | None = None) -> Path:
    """Where packed datasets are kept: as given, else $TAPNET_DATA, else `tapnet` in the user's cache folder."""
    if root is not None:
        return Path(root).expanduser()
    if os.environ.get("TAPNET_DATA"):
        return Path(os.environ["TAPNET_DATA"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "tapnet"


def sha256_of(path: Path) -> str:
    """The digest of a file, read piece by piece."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

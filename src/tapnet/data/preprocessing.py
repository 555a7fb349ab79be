"""The one path from bytes, arrays and PIL images to uint8 pixels of one shape.

`tapnet data prepare` packs images through it, the packed dataset and every checkpoint trained on it record its
settings, and `fit` and `predict` read images by the same settings.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from tapnet.data.decoding import LARGE_SIDE, LoadedImage, on_white, with_image
from tapnet.data.source import Raw, Unreadable
from tapnet.errors import UserError

Pixels = NDArray[np.uint8]

FILTERS = {each.name.lower(): each for each in Image.Resampling}
FITS = ("squash", "crop")
INKS = ("bright", "dark")
_PAPER = 40  # gray levels this close to the background count as background


@dataclass(frozen=True)
class Decoded:
    """Pixels of the requested shape, and whether the image was resized."""

    pixels: Pixels
    resized: bool


@dataclass(frozen=True)
class Preprocessing:
    """The settings by which an image becomes pixels.

    `fit` is for images with other proportions: `squash` changes the proportions, `crop` cuts the longer side.

    `ink` is for drawings, whose border counts as paper: "bright" inverts images with a bright border, "dark" those with
    a dark border, and other images are unchanged. `centred` crops a drawing to the bounding box of its ink.
    `full_contrast` scales the brightest pixel to 255, because thin strokes fade when a large drawing is reduced. Both
    need bright ink.
    """

    height: int
    width: int
    channels: int
    filter: str = "lanczos"
    fit: str = "squash"
    ink: str | None = None
    centred: bool = False
    full_contrast: bool = False

    def __post_init__(self) -> None:
        if self.filter not in FILTERS:
            raise UserError(f"Expected a resize filter ({', '.join(FILTERS)}), got {self.filter!r}.")
        if self.fit not in FITS:
            raise UserError(f"Expected `fit` to be {' or '.join(FITS)}, got {self.fit!r}.")
        if self.channels not in (1, 3):
            raise UserError(f"Expected 1 channel (gray) or 3 channels (color), got {self.channels}.")
        if not (1 <= self.height <= 4096 and 1 <= self.width <= 4096):
            raise UserError(f"Expected image sides of 1 to 4096 pixels, got {self.height}×{self.width}.")
        if self.ink not in (None, *INKS):
            raise UserError(f"Expected `ink` to be {' or '.join(INKS)}, got {self.ink!r}.")
        if (self.centred or self.full_contrast) and self.ink != "bright":
            raise UserError(f"`centred` and `full_contrast` need `ink` to be bright, got {self.ink!r}.")

    @property
    def shape(self) -> tuple[int, int, int]:
        """(height, width, channels) of the pixels."""
        return self.height, self.width, self.channels

    @property
    def sufficient_side(self) -> int | None:
        """The height and width at which a photograph may be decoded; `None` for drawings, whose strokes are thin."""
        side = max(self.height, self.width)
        return max(side, min(2 * side, LARGE_SIDE)) if self.ink is None else None

    def as_dict(self) -> dict[str, Any]:
        """Return the settings as plain values, for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> Preprocessing:
        """Return the preprocessing with these settings, as from `as_dict`; raise UserError if they are not valid.

        ONNX files of earlier versions, which have `geometry` and `drawing`, are read too.
        """
        try:
            if "geometry" in values:
                return _from_geometry(values["geometry"], values["drawing"])
            return Preprocessing(**values)
        except (TypeError, KeyError) as error:
            raise UserError(f"Expected the settings of a preprocessing, got {dict(values)} ({error}).") from None

    def apply(self, loaded: LoadedImage) -> Decoded:
        """Return the pixels of an image; the full-size image is copied at most once."""
        image, size = loaded.image, loaded.stored_size(self.width, self.height)
        resized = image.size != size
        if self.centred or self.full_contrast:
            image, inverted = Image.fromarray(_bright_ink(_gray(image), self.centred)), False
        else:
            inverted = self.ink is not None and _has_bright_border(image) == (self.ink == "bright")
        if image.size != size:
            resize = ImageOps.fit if self.fit == "crop" else Image.Image.resize
            image = resize(image, size, FILTERS[self.filter])
        pixels = _as_array(on_white(loaded.upright(image)), "L" if self.channels == 1 else "RGB").reshape(self.shape)
        if self.full_contrast:
            pixels = np.asarray(np.rint(pixels * (255 / max(int(pixels.max()), 1))), dtype=np.uint8)
        return Decoded(255 - pixels if inverted else pixels, resized)


def decode(raw: Raw | Image.Image, preprocessing: Preprocessing) -> Decoded | Unreadable:
    """Return the pixels of an image, or the reason why it cannot be read; never raise for a damaged image."""
    return with_image(raw, preprocessing.apply, preprocessing.sufficient_side)


def _from_geometry(geometry: Mapping[str, Any], drawing: str) -> Preprocessing:
    values = dict(geometry)
    bright = bool(values.pop("invert", False)) or drawing != ""
    return Preprocessing(
        **values, ink="bright" if bright else None, centred=drawing == "centred", full_contrast=drawing != ""
    )


def _as_array(image: Image.Image, mode: str) -> Pixels:
    return np.asarray(image if image.mode == mode else image.convert(mode), dtype=np.uint8)


def _gray(image: Image.Image) -> Pixels:
    """Return the image (height, width) in gray; transparent pixels are white."""
    return _as_array(on_white(image), "L")


def _has_bright_border(image: Image.Image) -> bool:
    """Return whether most pixels on the border are bright, without copying the others."""
    width, height = image.size
    sides = ((0, 0, width, 1), (0, height - 1, width, height), (0, 0, 1, height), (width - 1, 0, width, height))
    return _are_bright(np.concatenate([_gray(image.crop(side)).ravel() for side in sides]))


def _are_bright(border: Pixels) -> bool:
    """Return whether the median of an even number of gray levels is above 127; `numpy.median` is slow for so few."""
    half = len(border) // 2
    return int(np.partition(border, (half - 1, half))[half - 1 : half + 1].sum(dtype=int)) > 2 * 127


def _bright_ink(gray: Pixels, centred: bool) -> Pixels:
    """Return a drawing with bright ink on black; `centred`, the bounding box of the ink in a black square."""
    border = np.concatenate((gray[0], gray[-1], gray[:, 0], gray[:, -1]))
    ink = 255 - gray if _are_bright(border) else gray
    rows, columns = (np.flatnonzero((ink > _PAPER).any(axis=axis)) for axis in (1, 0))
    if not centred or not len(rows):
        return ink
    box = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    side = max(box.shape)
    square = np.zeros((side, side), np.uint8)
    top, left = ((side - length) // 2 for length in box.shape)
    square[top : top + box.shape[0], left : left + box.shape[1]] = box
    return square

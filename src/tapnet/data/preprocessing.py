"""The one path from bytes, arrays and PIL images to uint8 pixels of one shape.

`tapnet data prepare` packs images through it, the packed dataset and every checkpoint trained on it record its
settings, and `fit` and `predict` read images by the same settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from tapnet.data.decoding import LoadedImage, on_white, with_image
from tapnet.data.source import Raw, Unreadable
from tapnet.errors import UserError

Pixels = NDArray[np.uint8]

FILTERS = {each.name.lower(): each for each in Image.Resampling}
FITS = ("squash", "crop")
INKS = ("bright", "dark")
_PAPER = 40  # gray levels this close to the background count as background
_SMALL = 256 * 256  # pixels of a drawing of which many may be in memory


@dataclass(frozen=True)
class Decoded:
    """Pixels of the requested shape, and whether the image was resized."""

    pixels: Pixels
    resized: bool


@dataclass(frozen=True)
class Drawing:
    """A drawing that is decoded, but not yet of the requested shape."""

    gray: Pixels
    loaded: LoadedImage


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
        return 2 * max(self.height, self.width) if self.ink is None else None

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
        return self.finish([self.prepare(loaded)])[0]

    def prepare(self, loaded: LoadedImage) -> Decoded | Drawing:
        """Return the pixels of an image; a small drawing is left to `finish`, which takes many at a time."""
        image = loaded.image
        if self.centred or self.full_contrast:
            drawing = Drawing(_gray(image), loaded)
            return drawing if drawing.gray.size <= _SMALL else self.finish([drawing])[0]
        inverted = self.ink is not None and _has_bright_border(image) == (self.ink == "bright")
        pixels = self._fit(image, loaded)
        return Decoded(255 - pixels if inverted else pixels, self._resizes(loaded))

    def finish(self, prepared: Sequence[Decoded | Drawing]) -> list[Decoded]:
        """Return the pixels of what `prepare` returned; drawings of one size are computed together."""
        finished: dict[int, Decoded] = {}
        sizes: dict[tuple[int, ...], dict[int, Drawing]] = {}
        for number, each in enumerate(prepared):
            if isinstance(each, Decoded):
                finished[number] = each
            else:
                sizes.setdefault(each.gray.shape, {})[number] = each
        for drawings in sizes.values():
            finished |= zip(drawings, self._finish_drawings(list(drawings.values())), strict=True)
        return [finished[number] for number in range(len(prepared))]

    def _finish_drawings(self, drawings: Sequence[Drawing]) -> list[Decoded]:
        first = drawings[0].gray[None]
        inks = _bright_inks(first if len(drawings) == 1 else np.stack([each.gray for each in drawings]), self.centred)
        pixels = np.stack([self._fit(ink, each.loaded) for ink, each in zip(inks, drawings, strict=True)])
        if self.full_contrast:
            brightest = pixels.max(axis=(1, 2, 3), keepdims=True)
            if brightest.min() < 255:
                pixels = np.rint(pixels * (255 / np.maximum(brightest, 1))).astype(np.uint8)
        return [Decoded(*each) for each in zip(pixels, (self._resizes(each.loaded) for each in drawings), strict=True)]

    def _resizes(self, loaded: LoadedImage) -> bool:
        return loaded.image.size != loaded.stored_size(self.width, self.height)

    def _fit(self, image: Image.Image | Pixels, loaded: LoadedImage) -> Pixels:
        """Return the stored image, or a drawing made of it, resized and upright."""
        if isinstance(image, np.ndarray):
            if (*image.shape, 1) == self.shape and loaded.orientation is None:
                return image[..., None]
            image = Image.fromarray(image)
        size = loaded.stored_size(self.width, self.height)
        if image.size != size:
            image = self._resize(image, size)
        return _as_array(on_white(loaded.upright(image)), "L" if self.channels == 1 else "RGB").reshape(self.shape)

    def _resize(self, image: Image.Image, size: tuple[int, int]) -> Image.Image:
        resize = ImageOps.fit if self.fit == "crop" else Image.Image.resize
        return resize(image, size, FILTERS[self.filter])


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
    return bool(_are_bright(np.concatenate([_gray(image.crop(side)).ravel() for side in sides])[None])[0])


def _are_bright(borders: Pixels) -> NDArray[np.bool_]:
    """Return for each row of gray levels, of even length, whether its median is above 127; `numpy.median` is slow."""
    half = borders.shape[1] // 2
    middle = np.partition(borders, (half - 1, half), axis=1)[:, half - 1 : half + 1]
    return np.asarray(middle.sum(axis=1, dtype=int) > 2 * 127)


def _bright_inks(grays: Pixels, centred: bool) -> list[Pixels]:
    """Return drawings (n, height, width) with bright ink on black; `centred`, their ink in black squares."""
    borders = np.concatenate((grays[:, 0], grays[:, -1], grays[:, :, 0], grays[:, :, -1]), axis=1)
    inverted = _are_bright(borders).astype(np.uint8) * 255
    inks = grays ^ inverted[:, None, None]
    if not centred:
        return list(inks)
    marked = inks > _PAPER
    return list(map(_in_square, inks, _bounds(np.any(marked, axis=2)), _bounds(np.any(marked, axis=1))))


def _bounds(marked: NDArray[np.bool_]) -> list[list[int]]:
    """Return where the marks of each row (n, length) begin and end; both are 0 where there is none."""
    start, stop = marked.argmax(axis=1), marked.shape[1] - marked[:, ::-1].argmax(axis=1)
    bounds: list[list[int]] = np.stack([start, stop * marked.any(axis=1)], axis=1).tolist()
    return bounds


def _in_square(ink: Pixels, rows: Sequence[int], columns: Sequence[int]) -> Pixels:
    """Return the bounding box of the ink in the middle of a black square; a drawing without ink as it is."""
    if not rows[1]:
        return ink
    box = ink[slice(*rows), slice(*columns)]
    height, width = box.shape
    if height == width:
        return box
    side = max(height, width)
    square = np.zeros((side, side), np.uint8)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = box
    return square

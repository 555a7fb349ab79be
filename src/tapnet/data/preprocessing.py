"""The one path from bytes, arrays and PIL images to uint8 pixels of one shape.

`tapnet data prepare` packs images through it, the packed dataset and every checkpoint trained on it record its
settings, and `fit` and `predict` read images by the same settings. Only the formats listed here are opened, and nothing
of more than `most_pixels` is decoded; a JPEG counts by the size to which it is reduced while it is decoded.
"""

from __future__ import annotations

import io
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, JpegImagePlugin, UnidentifiedImageError

from tapnet.errors import UserError

Pixels = NDArray[np.uint8]
T = TypeVar("T")

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "TGA", "JPEG2000", "AVIF", "HEIF")
SUFFIXES = frozenset(
    ".avif .bmp .gif .heic .heif .hif .jfif .jp2 .jpe .jpeg .jpg .pbm .pgm .png .pnm .ppm .tga .tif .tiff .webp".split()  # noqa: SIM905
)
FILTERS = {resampling.name.lower(): resampling for resampling in Image.Resampling}
FITS = ("squash", "crop")
INKS = ("bright", "dark")
LARGEST_FILE = 100_000_000  # bytes of one encoded image; far beyond any photograph, and small enough to hold
MOST_PIXELS = 64_000_000  # of one image, more than telephones take; with a copy of it, 500 MB while it is decoded
JPEG_FACTOR = 4  # a JPEG may have so many times more: it can be decoded at half its width and height
MOST_ELONGATED = 200  # times longer than wide; squares around longer drawings would take gigabytes
LARGE_PIXELS = 4_000_000
LARGEST_SIDE = 4096  # of the pixels that an image becomes, and of a drawing before it is put into a square
LARGE_SIDE = 1600  # to which a JPEG of too many pixels is reduced if nobody says how large it is needed
ORIENTATION = 0x0112  # the EXIF tag
ORIENTATIONS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = tuple(ORIENTATIONS[number] for number in (5, 6, 7, 8))
_PAPER = 40  # gray levels this close to the background count as background
_one_large_at_a_time = threading.Lock()


class Unreadable(NamedTuple):
    """The reason why an image cannot be read, in place of the image."""

    reason: str


class TooLarge(Unreadable):
    """The image was not decoded, because it has more pixels than allowed."""


Raw = bytes | Pixels | Unreadable  # what a reader gives for an image: its file, its pixels, or why there are none


@dataclass(frozen=True)
class LoadedImage:
    """A decoded image as stored: 8-bit gray, RGB or RGBA, and the rotation or reflection that turns it upright."""

    image: Image.Image
    orientation: Image.Transpose | None = None

    def stored_size(self, width: int, height: int) -> tuple[int, int]:
        """Return the size of the stored image whose upright size is (width, height)."""
        return (height, width) if self.orientation in SIDEWAYS else (width, height)

    def upright(self, image: Image.Image) -> Image.Image:
        """Return a version of the stored image upright."""
        return image if self.orientation is None else image.transpose(self.orientation)

    def thumbnail(self, side: int) -> Image.Image:
        """Return the image upright, RGB, without transparency, at most `side` pixels wide and high."""
        small = self.image.copy()
        small.thumbnail((side, side), Image.Resampling.LANCZOS)
        return _on_white(self.upright(small)).convert("RGB")


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
        if not (1 <= self.height <= LARGEST_SIDE and 1 <= self.width <= LARGEST_SIDE):
            raise UserError(f"Expected image sides of 1 to {LARGEST_SIDE} pixels, got {self.height}×{self.width}.")
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
        """Return the preprocessing with these settings, as from `as_dict`; raise UserError if they are not valid."""
        try:
            return Preprocessing(**values)
        except TypeError as error:
            raise UserError(f"Expected the settings of a preprocessing, got {dict(values)} ({error}).") from None

    def apply(self, loaded: LoadedImage) -> Pixels:
        """Return the pixels of an image."""
        if self.ink is None:
            return self._fit(loaded.image, loaded)
        gray = np.asarray(_as_mode(_on_white(loaded.image), "L"))
        inverted = _has_bright_border(gray) == (self.ink == "bright")
        if not (self.centred or self.full_contrast):
            pixels = self._fit(loaded.image, loaded)
            return 255 - pixels if inverted else pixels
        ink = 255 - gray if inverted else gray
        pixels = self._fit(Image.fromarray(_in_square(ink) if self.centred else ink), loaded)
        brightest = int(pixels.max())
        if self.full_contrast and brightest < 255:
            pixels = np.rint(pixels * (255 / max(brightest, 1))).astype(np.uint8)
        return pixels

    def _fit(self, image: Image.Image, loaded: LoadedImage) -> Pixels:
        """Return the stored image, or a drawing made of it, resized and upright."""
        size = loaded.stored_size(self.width, self.height)
        if image.size != size:
            resize = ImageOps.fit if self.fit == "crop" else Image.Image.resize
            image = resize(image, size, FILTERS[self.filter])
        mode = "L" if self.channels == 1 else "RGB"
        return np.asarray(_as_mode(_on_white(loaded.upright(image)), mode)).reshape(self.shape)


def with_image(
    raw: Raw | Image.Image, use: Callable[[LoadedImage], T], side: int | None = None, most_pixels: int | None = None
) -> T | Unreadable:
    """Return what `use` makes of the image, or the reason why it cannot be read.

    `side` is a height and width that `use` can do with: a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, but not below
    it, in a fraction of the time. Without `side`, only one of too many pixels is. An image that would have more than
    `most_pixels` (None: MOST_PIXELS) when decoded is `TooLarge`, and not decoded at all.
    """
    if isinstance(raw, Unreadable):
        return raw
    limit = MOST_PIXELS if most_pixels is None else most_pixels
    try:
        image = _open(raw)
        width, height = image.size
        if max(width, height) > MOST_ELONGATED * min(width, height):
            return Unreadable(f"{width}×{height} pixels: an image may be {MOST_ELONGATED} times longer than wide")
        if width * height > limit * JPEG_FACTOR:
            return _too_large(width, height, limit)
        if side is not None or width * height > limit:
            image.draft(image.mode, (side or LARGE_SIDE, side or LARGE_SIDE))
        if (pixels := image.width * image.height) > limit:
            return _too_large(width, height, limit)
        with _one_large_at_a_time if pixels > LARGE_PIXELS else nullcontext():
            return use(LoadedImage(_eight_bits(image), _orientation(image)))
    except Exception as error:  # decoders raise almost anything on damaged bytes
        return Unreadable(_reason(raw, error))


def _too_large(width: int, height: int, limit: int) -> TooLarge:
    return TooLarge(
        f"{width}×{height} pixels, where at most {limit:,} are decoded (a JPEG, which is reduced, may have "
        f"{JPEG_FACTOR} times as many): make it smaller or raise the limit"
    )


def image_size(raw: bytes) -> tuple[int, int] | Unreadable:
    """Return the width and height that an image file declares, without decoding it, or why it cannot be read."""
    try:
        return _open(raw).size
    except Exception as error:  # decoders raise almost anything on damaged bytes
        return Unreadable(_reason(raw, error))


def is_image_name(name: str) -> bool:
    """Return whether a file name has the suffix of an image."""
    return "." + name.rpartition(".")[2].lower() in SUFFIXES


@cache
def readable_formats() -> tuple[str, ...]:
    """Return those of FORMATS that can be read here: AVIF if Pillow can, HEIF if pillow-heif is installed."""
    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _open(raw: bytes | Pixels | Image.Image) -> Image.Image:
    """Return the image, not yet decoded; there is no file to close."""
    if isinstance(raw, bytes):
        if raw.startswith(b"\xff\xd8\xff"):  # Pillow's own limit counts the pixels of a JPEG before it is reduced
            with suppress(SyntaxError, IndexError, TypeError, struct.error):
                return JpegImagePlugin.jpeg_factory(io.BytesIO(raw))
        return Image.open(io.BytesIO(raw), formats=readable_formats())
    if isinstance(raw, Image.Image):
        return raw
    return Image.fromarray(raw[..., 0] if raw.ndim == 3 and raw.shape[2] == 1 else raw)


def _orientation(image: Image.Image) -> Image.Transpose | None:
    """Return the transformation that turns a photograph upright, as its camera recorded."""
    if not image.info:
        return None
    try:
        return ORIENTATIONS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged metadata around a good image: it stays as it is
        return None


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return the image in mode L, RGB or RGBA; of 16 bits, 65535 is white."""
    image.load()
    if image.mode.startswith("I"):  # Pillow's own conversion would clip everything above 255
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise UserError("more than 16 bits per pixel: save it with 8 or 16 bits")
        pixels = np.empty(values.shape, dtype=np.uint8)
        for start in range(0, len(values), 256):
            pixels[start : start + 256] = np.rint(values[start : start + 256] / np.float32(257))
        return Image.fromarray(pixels)
    if image.mode == "F":
        raise UserError("floating-point pixels, for which white is not defined: save it with 8 or 16 bits")
    if image.has_transparency_data:
        return _as_mode(image, "RGBA")
    return _as_mode(image, "L" if image.mode in ("1", "L") else "RGB")


def _reason(raw: object, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        if isinstance(raw, bytes) and raw[4:8] == b"ftyp" and "HEIF" not in readable_formats():
            return "HEIF and AVIF images need another package: pip install 'tapnet[heif]'"
        return "not an image of a known format"
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels, which may be a decompression bomb"
    return str(error) or type(error).__name__


def _on_white(image: Image.Image) -> Image.Image:
    """Return the image without transparency: transparent pixels become white."""
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image) if image.mode == "RGBA" else image


def _as_mode(image: Image.Image, mode: str) -> Image.Image:
    return image if image.mode == mode else image.convert(mode)


def _has_bright_border(gray: Pixels) -> bool:
    """Return whether the median of the gray levels on the border is above 127; `numpy.median` is slow."""
    border = np.concatenate((gray[0], gray[-1], gray[:, 0], gray[:, -1]))
    half = len(border) // 2
    border.partition((half - 1, half))
    return int(border[half - 1]) + int(border[half]) > 2 * 127


def _in_square(ink: Pixels) -> Pixels:
    """Return the bounding box of the ink in the middle of a black square; a drawing without ink as it is.

    A box longer than LARGEST_SIDE is reduced to it first, so that the square has a bounded size.
    """
    marked = ink > _PAPER
    (rows,), (columns,) = np.nonzero(marked.any(axis=1)), np.nonzero(marked.any(axis=0))
    if not len(rows):
        return ink
    box = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    if (longest := max(box.shape)) > LARGEST_SIDE:
        height, width = (max(1, side * LARGEST_SIDE // longest) for side in box.shape)
        box = np.asarray(Image.fromarray(box).resize((width, height), Image.Resampling.BOX))
    height, width = box.shape
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    square = np.zeros((side, side), np.uint8)
    square[top : top + height, left : left + width] = box
    return square

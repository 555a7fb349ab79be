"""Photographs resized by PyTorch, beside Pillow's."""

import numpy as np
import pytest
from PIL import Image, ImageOps

from tapnet.data import fast_resize
from tapnet.data.fast_resize import FastPreprocessing, crop_and_resize
from tapnet.data.preprocessing import Preprocessing, decode

needs_kernel = pytest.mark.skipif(fast_resize._kernel() is None, reason="no fast Lanczos filter in this PyTorch or CPU")


def photograph(width, height, seed=0):
    """Smooth noise with sharp edges, as large as a photograph."""
    generator = np.random.default_rng(seed)
    coarse = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8))
    image = coarse.resize((width, height), Image.Resampling.BICUBIC)
    image.paste((255, 0, 0), (width // 3, height // 3, width // 2, height // 2))
    return image


def differences(image, size):
    found = crop_and_resize(image, size)
    expected = np.asarray(ImageOps.fit(image, size, Image.Resampling.LANCZOS), dtype=int)
    assert found.shape == expected.shape
    return np.abs(found - expected)


@needs_kernel
@pytest.mark.parametrize("image", [(500, 375), (375, 500), (500, 332), (640, 480), (1200, 600), (300, 300), (48, 30)])
@pytest.mark.parametrize("size", [(260, 260), (224, 224), (64, 96)])
def test_pixels_are_nearly_those_of_pillow(image, size):
    found = differences(photograph(*image), size)
    assert found.max() <= 13  # an edge from black to white, moved by a twentieth of a pixel
    assert np.sqrt((found**2).mean()) < 0.5


@needs_kernel
def test_crop_stays_where_it_is_even_if_it_starts_at_half_a_pixel():
    ramp = np.tile(np.linspace(0, 255, 501).astype(np.uint8)[None, :, None], (300, 1, 3))
    assert differences(Image.fromarray(ramp), (224, 224)).max() <= 1


@needs_kernel
def test_image_that_is_nearly_square_is_left_to_pillow():
    image, preprocessing = photograph(301, 300), FastPreprocessing(224, 224, 3, fit="crop")
    assert crop_and_resize(image, (224, 224)) is None
    expected = np.asarray(ImageOps.fit(image, (224, 224), Image.Resampling.LANCZOS))
    assert np.array_equal(decode(image, preprocessing).pixels, expected)


@needs_kernel
@pytest.mark.parametrize("mode", ["L", "RGBA"])
def test_gray_and_transparent_images_are_those_of_pillow(mode):
    image, settings = photograph(400, 300).convert(mode), (224, 224, 3, "lanczos", "crop")
    found, expected = (decode(image, kind(*settings)).pixels for kind in (FastPreprocessing, Preprocessing))
    assert np.array_equal(found, expected)


@needs_kernel
@pytest.mark.parametrize("orientation", range(1, 9))
def test_every_orientation_is_nearly_that_of_pillow(orientation):
    image, settings = photograph(400, 300), (64, 96, 3, "lanczos", "crop")
    image.getexif()[0x0112] = orientation
    found, expected = (decode(image, kind(*settings)).pixels.astype(int) for kind in (FastPreprocessing, Preprocessing))
    assert np.sqrt(((found - expected) ** 2).mean()) < 0.5


def test_without_the_kernel_pixels_are_those_of_pillow(monkeypatch):
    monkeypatch.setattr(fast_resize, "_kernel", lambda: None)
    image, settings = photograph(500, 375), (224, 224, 3, "lanczos", "crop")
    found, expected = (decode(image, kind(*settings)).pixels for kind in (FastPreprocessing, Preprocessing))
    assert np.array_equal(found, expected)

import io
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tapnet.data import load_dataset
from tapnet.data.preprocessing import Preprocessing, TooLarge, Unreadable
from tapnet.inference import images
from tapnet.inference.images import read_image, read_images

PHOTO = Preprocessing(16, 16, 3, fit="crop")
DRAWING = Preprocessing(28, 28, 1, ink="bright", centred=True, full_contrast=True)


def test_drawing_comes_out_alike_dark_on_light_and_light_on_dark():
    gray = np.zeros((200, 150), np.uint8)
    gray[40:90, 30:100] = 255
    light, dark = (read_image(image, DRAWING).pixels for image in (gray, 255 - gray))
    np.testing.assert_array_equal(light, dark)
    assert light[14, 14] == 255


def test_drawing_is_cut_to_its_ink_wherever_it_lies():
    here, there = np.zeros((2, 300, 300), np.uint8)
    here[10:60, 20:50] = there[200:250, 240:270] = 255
    np.testing.assert_array_equal(read_image(here, DRAWING).pixels, read_image(there, DRAWING).pixels)


def test_thin_strokes_stay_bright_and_a_blank_image_dark():
    gray = np.full((1000, 1000), 255, np.uint8)
    assert read_image(gray, DRAWING).pixels.max() == 0
    gray[100:900, 500:503] = gray[500:503, 100:900] = 0
    assert read_image(gray, DRAWING).pixels.max() == 255


def test_bundled_drawings_come_out_almost_as_they_are():
    images = load_dataset("quickdraw", "val")
    given = images.pixels[images.rows[::50]].squeeze()
    made = np.stack([read_image(255 - image, DRAWING).pixels.squeeze() for image in given])
    correlation = np.corrcoef(given.ravel() > 127, made.ravel() > 127)[0, 1]
    assert correlation > 0.6


def test_images_come_in_order_and_broken_ones_with_a_reason(tmp_path):
    for number in range(200):
        path = tmp_path / f"{number:03d}.png"
        if number % 50 == 7:
            path.write_bytes(b"no image")
        else:
            Image.new("L", (9, 9), number).save(path)
    paths = sorted(tmp_path.iterdir())
    read = list(read_images(paths, PHOTO))
    assert [path for path, _ in read] == paths
    assert [int(path.stem) for path, example in read if isinstance(example, Unreadable)] == [7, 57, 107, 157]


def test_reading_ahead_is_bounded(tmp_path):
    Image.new("L", (9, 9)).save(tmp_path / "a.png")
    asked = 0

    def endless():
        nonlocal asked
        while True:
            asked += 1
            yield tmp_path / "a.png"

    stream = read_images(endless(), PHOTO)
    next(stream)
    stream.close()
    assert asked < 100


def test_thumbnail_is_a_small_jpeg_without_the_comment_of_the_file():
    stream = io.BytesIO()
    Image.new("RGB", (500, 1000)).save(stream, "JPEG", comment=b"<script>alert(1)</script>")
    thumbnail = read_image(stream.getvalue(), PHOTO, thumbnail=True).thumbnail
    assert Image.open(io.BytesIO(thumbnail)).size == (48, 96)
    assert b"script" not in thumbnail


def test_reading_by_the_caller_gives_what_threads_give():
    images = [np.full((9, 9), value, np.uint8) for value in range(20)]
    by_threads, by_caller = (list(read_images(images, PHOTO, workers=workers)) for workers in (2, 0))
    assert [one.sha256 for _, one in by_threads] == [one.sha256 for _, one in by_caller]
    assert all(image is given for (image, _), given in zip(by_threads, images, strict=True))


def test_reading_in_several_threads_leaves_the_warning_filters_as_they_were():
    before = list(warnings.filters)
    first, second = (read_images([np.zeros((9, 9), np.uint8)] * 3, PHOTO) for _ in range(2))
    next(first), next(second)
    first.close()
    second.close()
    assert warnings.filters == before


def test_image_beyond_the_pixels_allowed_is_not_decoded(monkeypatch):
    monkeypatch.setattr("tapnet.data.preprocessing._eight_bits", lambda _: pytest.fail("decoded"))
    refused = read_image(np.zeros((10, 11), np.uint8), DRAWING, most_pixels=109)
    assert isinstance(refused, TooLarge)
    assert "at most 109 are decoded" in refused.reason


@pytest.mark.parametrize("device", [True, False])
def test_file_that_is_too_large_or_never_ends_is_unreadable(device, tmp_path, monkeypatch):
    path = Path("/dev/zero") if device else tmp_path / "a.png"
    if device and not path.exists():
        pytest.skip("needs a device that never ends")
    if not device:
        path.write_bytes(bytes(1001))
    monkeypatch.setattr(images, "LARGEST_FILE", 1000)
    assert read_image(path, PHOTO).reason == "more than 1,000 bytes"

import io

import numpy as np
import pytest
from PIL import Image

from tapnet.data import load_dataset
from tapnet.data.preprocessing import Preprocessing
from tapnet.data.source import Unreadable
from tapnet.inference.images import is_coloured, read_picture, read_pictures

PHOTO = Preprocessing(16, 16, 3, fit="crop")
DRAWING = Preprocessing(28, 28, 1, ink="bright", centred=True, full_contrast=True)


def test_drawing_comes_out_alike_dark_on_light_and_light_on_dark():
    grey = np.zeros((200, 150), np.uint8)
    grey[40:90, 30:100] = 255
    light, dark = (read_picture(picture, DRAWING).pixels for picture in (grey, 255 - grey))
    np.testing.assert_array_equal(light, dark)
    assert light[14, 14] == 255


def test_drawing_is_cut_to_its_ink_wherever_it_lies():
    here, there = np.zeros((2, 300, 300), np.uint8)
    here[10:60, 20:50] = there[200:250, 240:270] = 255
    np.testing.assert_array_equal(read_picture(here, DRAWING).pixels, read_picture(there, DRAWING).pixels)


def test_thin_strokes_stay_bright():
    grey = np.full((1000, 1000), 255, np.uint8)
    grey[100:900, 500:503] = grey[500:503, 100:900] = 0
    assert read_picture(grey, DRAWING).pixels.max() == 255


def test_bundled_drawings_come_out_almost_as_they_are():
    images = load_dataset("quickdraw", "val")
    given = images.pixels[images.rows[::50]].squeeze()
    made = np.stack([read_picture(255 - picture, DRAWING).pixels.squeeze() for picture in given])
    correlation = np.corrcoef(given.ravel() > 127, made.ravel() > 127)[0, 1]
    assert correlation > 0.6


def test_blank_picture_is_read():
    assert read_picture(np.full((50, 50), 255, np.uint8), DRAWING).pixels.max() == 0


def test_exif_rotation_is_followed(tmp_path):
    half = np.zeros((20, 40, 3), np.uint8)
    half[:, 20:] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # turn clockwise to show
    Image.fromarray(half).save(tmp_path / "turned.jpg", exif=exif)
    pixels = read_picture(tmp_path / "turned.jpg", PHOTO).pixels
    assert pixels[0].mean() < 60
    assert pixels[-1].mean() > 190


@pytest.mark.parametrize("mode", ["RGBA", "CMYK", "I;16", "L", "P", "1", "LA"])
def test_every_kind_of_picture_is_read(tmp_path, mode):
    picture = Image.new(mode, (33, 21), 0 if mode != "CMYK" else (0, 0, 0, 255))
    path = tmp_path / ("a.tif" if mode in ("CMYK", "I;16") else "a.png")
    picture.save(path)
    expected = 255 if mode in ("RGBA", "LA") else 0  # what is transparent is white, as on paper
    assert abs(int(read_picture(path, PHOTO).pixels.mean()) - expected) < 3


def test_pictures_come_in_order_and_broken_ones_with_a_reason(tmp_path):
    for number in range(200):
        path = tmp_path / f"{number:03d}.png"
        if number % 50 == 7:
            path.write_bytes(b"no picture")
        else:
            Image.new("L", (9, 9), number).save(path)
    paths = sorted(tmp_path.iterdir())
    read = list(read_pictures(paths, PHOTO))
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

    stream = read_pictures(endless(), PHOTO)
    next(stream)
    stream.close()
    assert asked < 100


def test_thumbnail_is_a_small_jpeg():
    example = read_picture(np.zeros((1000, 500, 3), np.uint8), PHOTO)
    assert Image.open(io.BytesIO(example.thumbnail)).size == (48, 96)


def test_colour_is_told_from_grey():
    generator = np.random.default_rng(0)
    grey = Image.fromarray(generator.integers(0, 256, (50, 50), np.uint8).astype(np.uint8))
    assert is_coloured(grey) is False
    assert is_coloured(Image.new("RGB", (50, 50), (200, 30, 30))) is True
    assert isinstance(is_coloured("nowhere.png"), Unreadable)


def test_preprocessing_comes_back_from_its_dictionary():
    assert Preprocessing.from_dict(DRAWING.as_dict()) == DRAWING

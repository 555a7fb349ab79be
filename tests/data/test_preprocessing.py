import io
import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image, ImageOps

from tapnet.data import preprocessing as preprocessing_module
from tapnet.data.preprocessing import (
    FORMATS,
    Preprocessing,
    TooLarge,
    Unreadable,
    quiet_decoders,
    readable_formats,
    with_image,
)

readable_formats()  # registers what can save HEIF
COLOR, GREY = Preprocessing(8, 8, 3), Preprocessing(8, 8, 1)


def decode(raw, preprocessing):
    return with_image(raw, preprocessing.apply, preprocessing.sufficient_side)


def encoded(image, form="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def pixels(image, preprocessing=COLOR, form="PNG", **options):
    return decode(encoded(image, form, **options), preprocessing)


@given(
    mode=st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "I;16"]),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    channels=st.sampled_from([1, 3]),
    fit=st.sampled_from(["squash", "crop"]),
)
def test_decode_always_gives_the_wanted_shape(mode, size, channels, fit):
    assert pixels(Image.new(mode, size), Preprocessing(6, 9, channels, fit=fit)).shape == (6, 9, channels)


def test_decode_gray_becomes_three_equal_channels():
    assert (pixels(Image.new("L", (8, 8), 90)) == 90).all()


def test_decode_transparent_pixels_are_white_whatever_color_they_hide():
    image = Image.new("RGBA", (8, 8), (255, 0, 0, 0))
    assert (pixels(image) == 255).all()


def test_decode_half_transparent_pixels_mix_with_white():
    assert pixels(Image.new("RGBA", (8, 8), (0, 0, 0, 128)))[0, 0] == pytest.approx(127, abs=1)


def test_decode_palette_gives_the_colors_of_the_palette():
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    assert (pixels(image) == (10, 20, 30)).all()


def test_decode_transparent_palette_entry_is_white():
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    assert (pixels(image, transparency=1) == 255).all()


@pytest.mark.parametrize(("value", "wanted"), [(0, 0), (65535, 255), (32768, 128), (257 * 7, 7)])
def test_decode_sixteen_bits_are_scaled_and_not_cut(value, wanted):
    image = Image.fromarray(np.full((8, 8), value, dtype=np.uint16))
    assert (pixels(image, GREY) == wanted).all()


@pytest.mark.parametrize("form", ["PNG", "TIFF"])
def test_decode_sixteen_bits_are_the_same_in_every_format(form):
    image = Image.fromarray(np.full((8, 8), 257 * 200, dtype=np.uint16))
    assert (pixels(image, GREY, form) == 200).all()


def test_decode_one_bit_images_are_smoothed_when_they_shrink():
    checkers = Image.fromarray(np.indices((32, 32)).sum(axis=0) % 2 == 1)
    assert 100 < pixels(checkers, GREY).mean() < 156


def test_decode_image_lying_on_its_side_is_put_upright():
    image = Image.new("RGB", (8, 8), "black")
    image.paste("white", (0, 0, 4, 8))  # left half
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    upright = pixels(image, form="PNG", exif=exif)
    assert (upright[:4] == 255).all()
    assert (upright[4:] == 0).all()


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_decode_every_orientation_is_as_pillow_puts_it_upright(orientation, fit):
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8)
    image, exif = Image.fromarray(noise), Image.Exif()
    exif[0x0112] = orientation
    image.getexif()[0x0112] = orientation
    upright = ImageOps.exif_transpose(image)
    preprocessing = Preprocessing(6, 9, 3, fit=fit)
    assert pixels(image, preprocessing, exif=exif) == pytest.approx(pixels(upright, preprocessing), abs=2)


def test_decode_large_photograph_is_unpacked_smaller():
    photograph = Image.new("RGB", (9000, 5000), (200, 100, 50))
    assert pixels(photograph, form="JPEG")[4, 4] == pytest.approx((200, 100, 50), abs=3)


@pytest.mark.parametrize(
    ("preprocessing", "size"),
    [
        (Preprocessing(260, 260, 3, fit="crop"), (600, 600)),
        (Preprocessing(500, 500, 3), (1200, 1200)),
        (Preprocessing(1600, 1600, 3), (2400, 2400)),
        (Preprocessing(700, 700, 3), (2400, 2400)),
        (Preprocessing(28, 28, 1, ink="bright"), (2400, 2400)),
    ],
)
def test_large_photograph_is_decoded_at_twice_the_size_at_least_and_a_drawing_whole(preprocessing, size):
    stream = io.BytesIO()
    Image.new("RGB", (2400, 2400), "red").save(stream, "JPEG")
    assert with_image(stream.getvalue(), lambda loaded: loaded.image.size, preprocessing.sufficient_side) == size


def test_decode_large_photograph_looks_as_if_decoded_whole():
    noise = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    large, stream = Image.fromarray(noise).resize((2400, 1800), Image.Resampling.BICUBIC), io.BytesIO()
    large.save(stream, "JPEG", quality=95)
    preprocessing = Preprocessing(64, 64, 3, fit="crop")
    whole = with_image(stream.getvalue(), preprocessing.apply)
    assert decode(stream.getvalue(), preprocessing) == pytest.approx(whole, abs=3)


def test_decode_cmyk_is_converted_and_not_inverted():
    image = Image.new("CMYK", (8, 8), (0, 255, 255, 0))  # red ink
    assert pixels(image, form="JPEG", quality=100)[4, 4] == pytest.approx((255, 0, 0), abs=12)


def test_decode_squash_keeps_the_whole_image_and_crop_its_middle():
    image = Image.new("RGB", (24, 8), "black")
    image.paste("white", (8, 0, 16, 8))
    assert (pixels(image, Preprocessing(8, 8, 3, fit="crop")) == 255).all()
    assert pixels(image).min() == 0


def test_decode_ink_makes_dark_ink_bright():
    drawing = Image.new("L", (8, 8), 255)
    drawing.putpixel((4, 4), 0)
    assert pixels(drawing, Preprocessing(8, 8, 1, ink="bright"))[4, 4] == 255


def test_decode_says_whether_it_resized(make):
    assert [with_image(make.png(1, (side, side)), COLOR.resizes) for side in (8, 9)] == [False, True]


def test_decode_array_is_taken_as_it_is():
    array = np.arange(192, dtype=np.uint8).reshape(8, 8, 3)
    assert np.array_equal(decode(array, COLOR), array)


@pytest.mark.parametrize("raw", [b"", b"no image", b"GIF89a", b"\x89PNG\r\n\x1a\n"])
def test_decode_what_is_no_image_says_so(raw):
    assert isinstance(decode(raw, COLOR), Unreadable)


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "BMP", "TIFF"])
def test_decode_cut_off_file_is_unreadable(form):
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    stream = io.BytesIO()
    noise.save(stream, form)
    assert isinstance(decode(stream.getvalue()[: len(stream.getvalue()) // 2], COLOR), Unreadable)


def declared(width, height):
    """A PNG whose header declares a size, and which holds nothing."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(("side", "words"), [(8100, "at most 64,000,000 are decoded"), (40000, "decompression bomb")])
def test_decode_bomb_is_refused_before_it_is_unpacked(side, words, monkeypatch):
    monkeypatch.setattr(preprocessing_module, "_eight_bits", lambda _: pytest.fail("decoded"))
    with quiet_decoders():
        assert words in decode(declared(side, side), COLOR).reason


def test_decode_photographs_of_telephones_are_not_too_large():
    image = Image.new("L", (12000, 9000), 200)  # 108 megapixels
    assert (pixels(image, form="JPEG") == 200).all()
    assert (pixels(image.resize((8064, 6048))) == 200).all()  # 48 megapixels


def test_with_image_takes_a_limit_that_a_jpeg_may_exceed_four_times():
    def size(width, height, form, most_pixels):
        content = encoded(Image.new("RGB", (width, height)), form)
        read = with_image(content, lambda loaded: loaded.image.size, 20, most_pixels)
        return type(read) if isinstance(read, TooLarge) else read

    assert size(100, 100, "PNG", 10_000) == (100, 100)
    assert size(100, 100, "PNG", 9_999) is TooLarge
    assert size(200, 200, "JPEG", 10_000) == (25, 25)
    assert size(201, 200, "JPEG", 10_000) is TooLarge


@pytest.mark.parametrize("size", [(60_000, 1), (1, 201)])
def test_decode_image_of_extreme_proportions_is_refused(size):
    centred = Preprocessing(28, 28, 1, ink="bright", centred=True)
    assert "200 times longer than wide" in decode(declared(*size), centred).reason


def test_decode_long_drawing_is_reduced_before_it_is_put_into_a_square():
    drawing = np.full((30_000, 300), 255, np.uint8)
    drawing[:, 100:200] = 0
    centred = Preprocessing(28, 28, 1, ink="bright", centred=True)
    tracemalloc.start()
    column = decode(drawing, centred).sum(axis=(0, 2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert column.argmax() in (13, 14)
    assert peak < 100e6


def test_decode_floating_point_image_asks_for_bits(make):
    found = decode(make.encoded(Image.new("F", (8, 8)), "TIFF"), COLOR)
    assert "8 or 16 bits" in found.reason


@pytest.mark.parametrize("form", ["EPS", "PCX", "SGI", "ICNS"])
def test_decode_opens_only_the_formats_that_are_meant(form, monkeypatch):
    """Pillow would start Ghostscript for an EPS, whatever the name of its file."""
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    stream = io.BytesIO()
    Image.new("RGB", (16, 16)).save(stream, form)
    assert decode(stream.getvalue(), COLOR) == Unreadable("not an image of a known format")


@pytest.mark.parametrize("form", FORMATS)
def test_decode_reads_every_format_that_is_promised(form):
    assert pixels(Image.new("RGB", (16, 16), (250, 250, 250)), form=form).mean() == pytest.approx(250, abs=4)


def test_decode_heif_without_its_package_says_what_to_install(make, monkeypatch):
    content = make.encoded(Image.new("RGB", (16, 16)), "HEIF")
    formats = tuple(name for name in FORMATS if name not in ("HEIF", "AVIF"))
    monkeypatch.setattr(preprocessing_module, "readable_formats", lambda: formats)
    assert "pip install 'tapnet[heif]'" in decode(content, COLOR).reason


@given(st.binary(max_size=200))
def test_decode_never_raises(raw):
    for start in (b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF"):
        assert isinstance(decode(start + raw, COLOR), Unreadable | np.ndarray)


@pytest.mark.parametrize(
    ("wrong", "choices"),
    [({"filter": "cubic"}, "lanczos"), ({"fit": "stretch"}, "squash or crop"), ({"channels": 2}, "1 channel")],
)
def test_preprocessing_refuses_with_the_choices(wrong, choices):
    with pytest.raises(ValueError, match=choices):
        Preprocessing(**{"height": 8, "width": 8, "channels": 3} | wrong)


def test_preprocessing_refuses_a_size_that_is_none():
    with pytest.raises(ValueError, match="1 to 4096"):
        Preprocessing(0, 0, 3)

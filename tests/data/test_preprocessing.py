"""Files become pixels, and those that `fit` and `predict` see are those that `tapnet data prepare` packed."""

import io
import struct
import tracemalloc
import warnings
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import EpsImagePlugin, Image, ImageDraw, ImageOps

from tapnet.checkpoint import Checkpoint, Header, read_header
from tapnet.data import DATASETS, load_dataset
from tapnet.data import preprocessing as preprocessing_module
from tapnet.data.preprocessing import FORMATS, Preprocessing, TooLarge, Unreadable, with_image
from tapnet.inference.images import read_image
from tapnet.inference.networks import load_network, preprocessing_of
from tapnet.recipe import load_recipe
from tapnet.training import train

preprocessing_module.readable_formats()  # registers what can save HEIF
COLOR, GRAY = Preprocessing(8, 8, 3), Preprocessing(8, 8, 1)


def decode(raw, preprocessing=COLOR):
    return with_image(raw, preprocessing.apply, preprocessing.sufficient_side)


def encoded(image, form="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


def pixels(image, preprocessing=COLOR, form="PNG", **options):
    return decode(encoded(image, form, **options), preprocessing)


def noise(width, height, channels=3):
    values = np.random.default_rng(0).integers(0, 256, (height // 10 + 1, width // 10 + 1, channels), dtype=np.uint8)
    return Image.fromarray(values.squeeze()).resize((width, height))


def orientation(number):
    exif = Image.Exif()
    exif[0x0112] = number
    return exif


@given(
    mode=st.sampled_from(["1", "L", "LA", "P", "RGB", "RGBA", "I;16"]),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    channels=st.sampled_from([1, 3]),
    fit=st.sampled_from(["squash", "crop"]),
)
def test_decode_always_gives_the_wanted_shape(mode, size, channels, fit):
    assert pixels(Image.new(mode, size), Preprocessing(6, 9, channels, fit=fit)).shape == (6, 9, channels)


def palette():
    image = Image.new("P", (8, 8), 1)
    image.putpalette([0, 0, 0, 10, 20, 30])
    return image


CONVERTED = {
    "gray": (encoded(Image.new("L", (8, 8), 90)), (90, 90, 90)),
    "transparent, whatever color it hides": (encoded(Image.new("RGBA", (8, 8), (255, 0, 0, 0))), (255, 255, 255)),
    "half transparent": (encoded(Image.new("RGBA", (8, 8), (0, 0, 0, 128))), (127, 127, 127)),
    "palette": (encoded(palette()), (10, 20, 30)),
    "transparent palette entry": (encoded(palette(), transparency=1), (255, 255, 255)),
    "16 bits": (encoded(Image.fromarray(np.full((8, 8), 257 * 7, np.uint16))), (7, 7, 7)),
    "16 bits, rounded": (encoded(Image.fromarray(np.full((8, 8), 32768, np.uint16)), "TIFF"), (128, 128, 128)),
    "CMYK, not inverted": (encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG", quality=100), (255, 0, 0)),
}


@pytest.mark.parametrize(("content", "color"), CONVERTED.values(), ids=CONVERTED)
def test_decode_converts_every_mode(content, color):
    assert decode(content)[4, 4] == pytest.approx(color, abs=12 if content.startswith(b"\xff\xd8") else 1)


@pytest.mark.parametrize("number", range(1, 9))
@pytest.mark.parametrize("fit", ["squash", "crop"])
def test_decode_every_orientation_is_as_pillow_puts_it_upright(number, fit):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))
    image.getexif()[0x0112] = number
    upright = ImageOps.exif_transpose(image)
    preprocessing = Preprocessing(6, 9, 3, fit=fit)
    sideways = pixels(image, preprocessing, exif=orientation(number))
    assert sideways == pytest.approx(pixels(upright, preprocessing), abs=2)


@pytest.mark.parametrize(
    ("preprocessing", "size"),
    [
        (Preprocessing(260, 260, 3, fit="crop"), (600, 600)),
        (Preprocessing(700, 700, 3), (2400, 2400)),
        (Preprocessing(28, 28, 1, ink="bright"), (2400, 2400)),
    ],
)
def test_large_photograph_is_decoded_at_twice_the_size_at_least_and_a_drawing_whole(preprocessing, size):
    content = encoded(Image.new("RGB", (2400, 2400), "red"), "JPEG")
    assert with_image(content, lambda loaded: loaded.image.size, preprocessing.sufficient_side) == size


def test_decode_large_photograph_looks_as_if_decoded_whole():
    small = np.random.default_rng(0).integers(0, 256, (30, 40, 3), dtype=np.uint8)
    large = Image.fromarray(small).resize((2400, 1800), Image.Resampling.BICUBIC)
    content, preprocessing = encoded(large, "JPEG", quality=95), Preprocessing(64, 64, 3, fit="crop")
    assert decode(content, preprocessing) == pytest.approx(with_image(content, preprocessing.apply), abs=3)


def test_decode_squash_keeps_the_whole_image_crop_its_middle_and_one_bit_images_are_smoothed():
    image = Image.new("RGB", (24, 8), "black")
    image.paste("white", (8, 0, 16, 8))
    assert (pixels(image, Preprocessing(8, 8, 3, fit="crop")) == 255).all()
    assert pixels(image).min() == 0
    checkers = Image.fromarray(np.indices((32, 32)).sum(axis=0) % 2 == 1)
    assert 100 < pixels(checkers, GRAY).mean() < 156


@pytest.mark.parametrize("form", ["PNG", "JPEG", "WEBP", "BMP", "TIFF"])
def test_decode_cut_off_file_is_unreadable(form):
    content = encoded(noise(64, 64), form)
    for length in (0, 8, len(content) // 2):
        assert isinstance(decode(content[:length]), Unreadable)


def declared(width, height):
    """A PNG whose header declares a size, and which holds nothing."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((8100, 8100), "at most 64,000,000 are decoded"),
        ((40000, 40000), "decompression bomb"),
        ((60_000, 1), "200 times longer than wide"),
        ((1, 201), "200 times longer than wide"),
    ],
)
def test_decode_bomb_is_refused_before_it_is_unpacked(size, words, monkeypatch):
    monkeypatch.setattr(preprocessing_module, "_eight_bits", lambda _: pytest.fail("decoded"))
    with warnings.catch_warnings(action="ignore"):
        assert words in decode(declared(*size)).reason


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


def test_decode_long_drawing_is_reduced_before_it_is_put_into_a_square():
    drawing = np.full((30_000, 300), 255, np.uint8)
    drawing[:, 100:200] = 0
    tracemalloc.start()
    column = decode(drawing, Preprocessing(28, 28, 1, ink="bright", centred=True)).sum(axis=(0, 2))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert column.argmax() in (13, 14)
    assert peak < 100e6


@pytest.mark.parametrize("form", ["EPS", "PCX", "SGI", "ICNS"])
def test_decode_opens_only_the_formats_that_are_meant_and_whole_numbers(form, monkeypatch):
    """Pillow would start Ghostscript for an EPS, whatever the name of its file."""
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *_, **__: pytest.fail("Ghostscript was started"))
    assert pixels(Image.new("RGB", (16, 16)), form=form) == Unreadable("not an image of a known format")
    assert "8 or 16 bits" in pixels(Image.new("F", (8, 8)), form="TIFF").reason


@pytest.mark.parametrize("form", FORMATS)
def test_decode_reads_every_format_that_is_promised(form):
    assert pixels(Image.new("RGB", (16, 16), (250, 250, 250)), form=form).mean() == pytest.approx(250, abs=4)


def test_decode_heif_without_its_package_says_what_to_install(monkeypatch):
    content = encoded(Image.new("RGB", (16, 16)), "HEIF")
    formats = tuple(name for name in FORMATS if name not in ("HEIF", "AVIF"))
    monkeypatch.setattr(preprocessing_module, "readable_formats", lambda: formats)
    assert "pip install 'tapnet[heif]'" in decode(content).reason


@given(st.binary(max_size=200))
def test_decode_never_raises(raw):
    for start in (b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff\xe0", b"GIF89a", b"RIFF"):
        assert isinstance(decode(start + raw), Unreadable | np.ndarray)


@pytest.mark.parametrize(
    ("wrong", "choices"),
    [
        ({"filter": "cubic"}, "lanczos"),
        ({"fit": "stretch"}, "squash or crop"),
        ({"channels": 2}, "1 channel"),
        ({"height": 0}, "1 to 4096"),
    ],
)
def test_preprocessing_refuses_with_the_choices(wrong, choices):
    with pytest.raises(ValueError, match=choices):
        Preprocessing(**{"height": 8, "width": 8, "channels": 3} | wrong)


FILES = {
    "photograph.jpg": (noise(90, 60), {}),
    "large.jpg": (noise(3200, 2400), {}),
    "sideways.jpg": (noise(90, 60), {"exif": orientation(6)}),
    "sixteen-bits.png": (Image.fromarray(np.asarray(noise(60, 40, 1)).astype(np.uint16) * 257), {}),
    "palette.png": (noise(60, 40).convert("P", palette=Image.Palette.ADAPTIVE), {}),
    "transparent.png": (Image.fromarray(np.asarray(noise(60, 40, 4))), {}),
    "gray.png": (noise(60, 40, 1), {}),
    "same-size.png": (noise(20, 20), {}),
    "photograph.avif": (noise(90, 60), {}),
}


def header_for(images, tmp_path):
    """The header of a checkpoint that was trained on these images, written and read."""
    header = Header(load_recipe("quickdraw"), images.image_shape, 0, preprocessing=images.preprocessing.as_dict())
    Checkpoint(header, {}).write(tmp_path / "checkpoint.safetensors")
    return read_header(tmp_path / "checkpoint.safetensors")


def assert_served_as_packed(packed, folder, tmp_path):
    """What an inference with a checkpoint of these images sees of their files is what was packed."""
    preprocessing = preprocessing_of(header_for(packed.image_set("all"), tmp_path))
    for row, name in enumerate(packed.row_names()[:-1]):
        served = read_image(folder / name, preprocessing).pixels
        np.testing.assert_array_equal(served, packed.pixels[row], err_msg=name)


@pytest.mark.parametrize("options", [{}, {"fit": "crop"}, {"channels": 1}, {"filter": "box"}], ids=str)
def test_photographs_are_served_as_they_were_packed(pack, options, tmp_path):
    (tmp_path / "files" / "things").mkdir(parents=True)
    for name, (image, saving) in FILES.items():
        image.save(tmp_path / "files" / "things" / name, **saving)
    assert_served_as_packed(pack("folder", tmp_path / "files", size=20, **options), tmp_path / "files", tmp_path)


def test_arrays_are_served_as_they_were_packed(pack, tmp_path):
    arrays = np.stack([np.asarray(noise(84, 84)), 255 - np.asarray(noise(84, 84))])
    np.savez(tmp_path / "train.npz", n01532829=arrays)
    packed = pack("mini-imagenet", tmp_path / "train.npz", size=20, fit="crop")
    served = [read_image(array, packed.manifest.preprocessing).pixels for array in arrays]
    np.testing.assert_array_equal(served, packed.pixels)


@pytest.mark.parametrize("ink", ["bright", "dark"])
def test_characters_are_served_as_they_were_packed_and_light_drawings_with_their_ink(pack, make, tmp_path, ink):
    """Two characters of Omniglot as large drawings, dark ink on white, in a set of another name."""
    files = {}
    for name in DATASETS["omniglot"].splits["train"][:2]:
        image = Image.new("1", (105, 105), 1)
        ImageDraw.Draw(image).line([(10 + len(files), 10), (80, 60), (20, 90)], fill=0, width=3)
        files[f"{name}/1.png"] = encoded(image)
    folder = make.tree(tmp_path / "characters", files)
    packed = pack("omniglot", folder, name="my-characters", ink=ink)
    assert np.median(packed.pixels) == (0 if ink == "bright" else 255)
    assert_served_as_packed(packed, folder, tmp_path)
    light = 255 - np.asarray(Image.open(folder / packed.row_names()[0]).convert("L"))
    served = read_image(light, packed.manifest.preprocessing).pixels.astype(int)
    assert np.abs(served - packed.pixels[0]).max() <= 1  # the filter rounds black and white differently


@pytest.mark.parametrize("name", ["drawings", "characters"])
def test_bundled_network_takes_ink_of_either_polarity(name):
    drawing = np.full((60, 60), 255, np.uint8)
    drawing[20:40, 28:32] = 0
    preprocessing = load_network(name).preprocessing
    dark, light = (read_image(image, preprocessing).pixels for image in (drawing, 255 - drawing))
    np.testing.assert_array_equal(dark, light)
    assert dark.max() == 255


def test_training_writes_the_preprocessing_of_its_images_into_the_checkpoint(pack, make, tmp_path):
    files = {f"{name}/{value}.png": make.png(value, (9, 9)) for name in "abcdefghijkl" for value in range(6)}
    pack("folder", make.tree(tmp_path / "files", files), name="own", size=16, fit="crop", channels=1)
    sizes = [f"{part}.{key}" for part in ("training", "validation") for key in ("way=3", "shot=1", "query=1")]
    data = ["data.name=own", f"data.root={tmp_path / 'root'}", "data.train_split=all", "validation.split=all"]
    method = ["method.name=protonet", "method.options={}", "training.episodes=2", "validation.episodes=2"]
    best = train(load_recipe("quickdraw", [*data, *method, *sizes]), tmp_path / "run", "cpu")
    assert preprocessing_of(read_header(best)) == Preprocessing(16, 16, 1, fit="crop")


def test_header_whose_preprocessing_is_of_another_shape_is_refused(tmp_path):
    images = load_dataset("quickdraw", "val")
    assert images.preprocessing == Preprocessing(28, 28, 1, ink="bright", centred=True, full_contrast=True)
    header = header_for(images, tmp_path)
    header.preprocessing["height"] = 30
    with pytest.raises(ValueError, match=r"\(28, 28, 1\), got \(30, 28, 1\)"):
        preprocessing_of(header)

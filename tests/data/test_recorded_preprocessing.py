"""The pixels that `fit` and `predict` see of a file are those that `tapnet data prepare` packed of it."""

import numpy as np
import pytest
from PIL import Image, ImageDraw

from tapnet.checkpoint import Checkpoint, Header, read_header
from tapnet.data import DATASETS, load_dataset
from tapnet.data.preprocessing import Preprocessing
from tapnet.inference.images import read_image
from tapnet.inference.networks import load_network, preprocessing_of
from tapnet.recipe import load_recipe
from tapnet.training import train

OPTIONS = {
    "squash": {"size": 20},
    "crop": {"size": 20, "fit": "crop"},
    "gray": {"size": 20, "channels": 1},
    "box": {"size": 20, "filter": "box"},
}


def noise(width, height, channels=3):
    values = np.random.default_rng(0).integers(0, 256, (height // 10 + 1, width // 10 + 1, channels), dtype=np.uint8)
    return Image.fromarray(values.squeeze()).resize((width, height))


def rotated_by_exif():
    exif = Image.Exif()
    exif[0x0112] = 6
    return {"exif": exif}


def palette():
    return noise(60, 40).convert("P", palette=Image.Palette.ADAPTIVE)


def transparent():
    image = noise(60, 40).convert("RGBA")
    image.putalpha(noise(60, 40, 1))
    return image


FILES = {
    "photograph.jpg": (lambda: noise(90, 60), {}),
    "large.jpg": (lambda: noise(3200, 2400), {}),
    "sideways.jpg": (lambda: noise(90, 60), rotated_by_exif()),
    "sixteen-bits.png": (lambda: Image.fromarray(np.asarray(noise(60, 40, 1)).astype(np.uint16) * 257), {}),
    "palette.png": (palette, {}),
    "transparent.png": (transparent, {}),
    "gray.png": (lambda: noise(60, 40, 1), {}),
    "same-size.png": (lambda: noise(20, 20), {}),
    "photograph.avif": (lambda: noise(90, 60), {}),
}


@pytest.fixture(scope="module")
def photographs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photographs")
    (folder / "things").mkdir()
    for name, (make_image, options) in FILES.items():
        make_image().save(folder / "things" / name, **options)
    return folder


def served(header, path):
    """What an inference with a checkpoint of this header sees of a file."""
    return read_image(path, preprocessing_of(header)).pixels


def header_for(images, tmp_path):
    """The header of a checkpoint that was trained on these images, written and read."""
    header = Header(load_recipe("quickdraw"), images.image_shape, 0, preprocessing=images.preprocessing.as_dict())
    Checkpoint(header, {}).write(tmp_path / "checkpoint.safetensors")
    return read_header(tmp_path / "checkpoint.safetensors")


def assert_served_as_packed(packed, folder, tmp_path):
    header = header_for(packed.image_set("all"), tmp_path)
    for row, name in enumerate(packed.row_names()[:-1]):
        np.testing.assert_array_equal(served(header, folder / name), packed.pixels[row], err_msg=name)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_photographs_are_served_as_they_were_packed(pack, photographs, options, tmp_path):
    assert_served_as_packed(pack("folder", photographs, name="things", **options), photographs, tmp_path)


def image_files(make):
    """Four files whose pixels come out different at every size: wide, high, of few pixels, and sideways."""
    shapes = {"wide.png": (70, 40), "high.png": (30, 90), "small.png": (11, 9), "sideways.jpg": (60, 50)}
    images = {name: noise(*shape) for name, shape in shapes.items()}
    return {
        name: make.encoded(image, "JPEG", **rotated_by_exif()) if name.endswith("jpg") else make.encoded(image)
        for name, image in images.items()
    }


def in_folders(dataset, nesting="{label}/{name}"):
    def files(make):
        label = DATASETS[dataset].splits["train"][0] if dataset != "folder" else "things"
        return {nesting.format(label=label, name=name): content for name, content in image_files(make).items()}

    return files


def in_csv_lists(make):
    """`train.csv` beside a folder of images, as miniImageNet is handed out."""
    label = DATASETS["mini-imagenet"].splits["train"][0]
    rows = "".join(f"{name},{label}\n" for name in image_files(make))
    listed = {"train.csv": f"filename,label\n{rows}".encode()}
    return listed | {f"images/{name}": content for name, content in image_files(make).items()}


def in_a_table(make):
    rows = "".join(f"files/{name},things\n" for name in image_files(make))
    listed = {"labels.csv": f"path,label\n{rows}".encode()}
    return listed | {f"files/{name}": content for name, content in image_files(make).items()}


FORMS = {
    "mini-imagenet, folders": ("mini-imagenet", in_folders("mini-imagenet")),
    "mini-imagenet, lists": ("mini-imagenet", in_csv_lists),
    "tiered-imagenet, folders": ("tiered-imagenet", in_folders("tiered-imagenet")),
    "tiny-imagenet": ("tiny-imagenet-tiered", in_folders("tiny-imagenet-tiered", "train/{label}/images/{name}")),
    "cifar-fs, folders": ("cifar-fs", in_folders("cifar-fs", "train/{label}/{name}")),
    "omniglot": ("omniglot", in_folders("omniglot")),
    "folder": ("folder", in_folders("folder")),
    "folder, table": ("folder", in_a_table),
}
CHOICES = {
    "as published": {},
    "another size": {"size": 24},
    "crop": {"fit": "crop"},
    "box filter": {"filter": "box"},
    "gray": {"channels": 1},
    "dark ink": {"ink": "dark"},
}
CASES = [
    pytest.param(*FORMS[form], CHOICES[choice], id=f"{form}, {choice}")
    for form in FORMS
    for choice in CHOICES
    if choice != "dark ink" or form == "omniglot"
]


@pytest.mark.parametrize(("dataset", "files", "options"), CASES)
def test_every_form_and_option_is_served_as_it_was_packed(dataset, files, options, pack, make, tmp_path):
    packed = pack(dataset, make.tree(tmp_path / "source", files(make)), name="mine", **options)
    header = header_for(packed.image_set("all"), tmp_path)
    seen = [served(header, content) for content in image_files(make).values()]
    assert sorted(each.tobytes() for each in seen) == sorted(each.tobytes() for each in packed.pixels)


def test_arrays_are_served_as_they_were_packed(pack, tmp_path):
    arrays = np.stack([np.asarray(noise(84, 84)), 255 - np.asarray(noise(84, 84))])
    (tmp_path / "npz").mkdir()
    np.savez(tmp_path / "npz" / "train.npz", n01532829=arrays)
    packed = pack("mini-imagenet", tmp_path / "npz", size=20, fit="crop")
    header = header_for(packed.image_set("all"), tmp_path)
    np.testing.assert_array_equal([served(header, array) for array in arrays], packed.pixels)


@pytest.fixture
def characters(tmp_path, make):
    """Two characters of Omniglot as large drawings, dark ink on white."""
    files = {}
    for name in DATASETS["omniglot"].splits["train"][:2]:
        for number in range(2):
            image = Image.new("1", (105, 105), 1)
            ImageDraw.Draw(image).line([(10 + number, 10), (80, 60), (20, 90)], fill=0, width=3)
            files[f"{name}/{number}.png"] = make.encoded(image)
    return make.tree(tmp_path / "characters", files)


@pytest.mark.parametrize("ink", ["bright", "dark"])
def test_characters_are_served_as_they_were_packed_whatever_the_name_of_the_set(pack, characters, ink, tmp_path):
    packed = pack("omniglot", characters, name="my-characters", ink=ink)
    assert np.median(packed.pixels) == (0 if ink == "bright" else 255)
    assert_served_as_packed(packed, characters, tmp_path)


def test_light_drawings_are_served_with_the_ink_of_the_packed_ones(pack, characters):
    packed = pack("omniglot", characters, name="my-characters")
    path = characters / packed.row_names()[0]
    light = 255 - np.asarray(Image.open(path).convert("L"))
    found = read_image(light, packed.manifest.preprocessing).pixels.astype(int)
    assert np.abs(found - packed.pixels[0]).max() <= 1  # the filter rounds black and white differently


def test_quickdraw_says_that_its_drawings_are_bright_and_centred():
    found = load_dataset("quickdraw", "val").preprocessing
    assert found == Preprocessing(28, 28, 1, ink="bright", centred=True, full_contrast=True)


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
    recipe = load_recipe(
        "quickdraw",
        [
            "data.name=own",
            f"data.root={tmp_path / 'root'}",
            "data.train_split=all",
            "validation.split=all",
            "method.name=protonet",
            "method.options={}",
            "training.way=3",
            "training.shot=1",
            "training.query=1",
            "training.episodes=2",
            "validation.way=3",
            "validation.shot=1",
            "validation.query=1",
            "validation.episodes=2",
        ],
    )
    best = train(recipe, tmp_path / "run", "cpu")
    assert preprocessing_of(read_header(best)) == Preprocessing(16, 16, 1, fit="crop")


def test_header_whose_preprocessing_is_of_another_shape_is_refused(tmp_path):
    images = load_dataset("quickdraw", "val")
    header = header_for(images, tmp_path)
    header.preprocessing["height"] = 30
    with pytest.raises(ValueError, match=r"\(28, 28, 1\), got \(30, 28, 1\)"):
        preprocessing_of(header)

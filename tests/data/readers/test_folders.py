import unicodedata

import pytest

from tapnet.data.dataset import random_splits
from tapnet.data.preprocessing import readable_formats
from tapnet.errors import UserError


def trees(make, names, values=(10, 20), ending="png"):
    return {f"{name}/{value}.{ending}": make.png(value) for name in names for value in values}


def test_folder_takes_every_usual_ending(pack, make, tmp_path):
    for ending in ["jpg", "JPG", "jpeg", "png", "webp", "bmp", "tif", "tiff", "gif", "avif", "heic"]:
        form = {"jpg": "JPEG", "jpeg": "JPEG", "tif": "TIFF", "heic": "HEIF"}.get(ending.lower(), ending.upper())
        assert form in readable_formats()
        make.file(tmp_path / "f" / "cat" / f"1.{ending}", make.encoded(make.image(9), form))
    assert len(pack("folder", tmp_path / "f").pixels) == 11


@pytest.mark.parametrize(
    ("folders", "classes"),
    [
        (["cat", "dog"], ["cat", "dog"]),
        (["CUB/images/wren", "CUB/images/jay"], ["jay", "wren"]),
        (["Greek/alpha", "Latin/alpha"], ["Greek/alpha", "Latin/alpha"]),
        (["bus", "train"], ["bus", "train"]),
    ],
)
def test_folder_classes_are_the_paths_below_what_all_images_share(pack, make, tmp_path, folders, classes):
    packed = pack("folder", make.tree(tmp_path / "f", trees(make, folders)), channels=1, size=8)
    assert packed.manifest.classes == dict.fromkeys(classes, 2)
    assert packed.pixels.shape[1:] == (8, 8, 1)


def test_folder_of_splits_keeps_them_unless_they_share_classes(pack, make, tmp_path):
    packed = pack("folder", make.tree(tmp_path / "f", trees(make, ["train/a", "train/b", "valid/c", "test/d"])))
    assert dict(packed.manifest.splits) == {"train": ("a", "b"), "val": ("c",), "test": ("d",)}
    shared = make.tree(tmp_path / "shared", trees(make, ["train/a", "train/b", "test/a", "test/b"]))
    packed = pack("folder", shared, name="shared")
    assert dict(packed.manifest.classes) == {"a": 4, "b": 4}
    assert any("split by class" in note for note in packed.manifest.notes)


def test_folder_split_follows_the_seed_and_not_the_order_of_the_classes(pack, make, tmp_path):
    names = [f"c{number:02d}" for number in range(25)]
    path = make.tree(tmp_path / "f", trees(make, names, (1,)))
    first, again, other = (pack("folder", path, size=1, name=f"s{n}", seed=n % 2).manifest for n in (0, 2, 1))
    assert first.splits == again.splits != other.splits
    assert [len(first.splits[split]) for split in ("train", "val", "test")] == [16, 4, 5]
    assert random_splits(names, 3) == random_splits(names[::-1], 3)


def test_folder_what_is_skipped_is_named_by_reason(pack, make, tmp_path):
    files = trees(make, ["cat", "dog"]) | {"stray.png": make.png(1), "cat/notes.txt": b"n", "gnu/.hidden": b""}
    assert pack("folder", make.tree(tmp_path / "f", files)).manifest.notes == (
        "Skipped 1 file, not in a class folder: stray.png.",
        "Skipped 1 file, not images by their suffix: cat/notes.txt.",
    )


def test_folder_names_with_accents_are_the_same_however_they_are_stored(pack, make, tmp_path):
    composed, apart = (unicodedata.normalize(form, "café") for form in ("NFC", "NFD"))
    forms = {"one": composed, "two": apart}
    sets = [pack("folder", make.tree(tmp_path / n, trees(make, [label])), name=n) for n, label in forms.items()]
    assert sets[0].manifest.classes == sets[1].manifest.classes == {composed: 2}


@pytest.fixture
def table(make, tmp_path):
    def write(text):
        make.tree(tmp_path / "t", {f"images/{value}.png": make.png(value) for value in (10, 20, 30)})
        return make.file(tmp_path / "t" / "labels.csv", text.encode())

    return write


TABLES = {
    "header": "path,label\nimages/10.png,cat\nimages/20.png,dog\nimages/30.png,cat\n",
    "no header": "images/10.png,cat\nimages/20.png,dog\nimages/30.png,cat\n",
    "other columns": "id,class,filename\n1,cat,images/10.png\n2,dog,images/20.png\n3,cat,./images/30.png\n",
    "byte order mark": "\ufeffpath,label\r\nimages/10.png, cat\r\nimages/20.png, dog\r\nimages\\30.png, cat\r\n",
}


@pytest.mark.parametrize("kind", TABLES)
def test_csv_table_is_read(pack, table, reds, kind):
    packed = pack("folder", table(TABLES[kind]))
    assert (reds(packed, "cat"), reds(packed, "dog")) == ([10, 30], [20])


def test_csv_table_is_found_in_its_folder_and_takes_whole_paths_paths_with_dots_and_splits(pack, table, tmp_path):
    text = TABLES["no header"].replace("images", str(tmp_path / "t" / "images"))
    packed = pack("folder", table(text + "images/../images/10.png,cat\n").parent)
    assert packed.manifest.source == "a CSV of paths and labels"
    assert len(packed.pixels) == 3
    text = "path,label,split\nimages/10.png,cat,train\nimages/20.png,dog,Test\nimages/30.png,emu,val\n"
    splits = pack("folder", table(text), name="splits").manifest.splits
    assert dict(splits) == {"train": ("cat",), "val": ("emu",), "test": ("dog",)}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("path,label\nimages/10.png,cat\nimages/10.png,dog\n", "two labels, 'cat' and 'dog'"),
        ("path,label\nimages/10.png,\n", "a path and a label on every line"),
        ("path,label,split\nimages/10.png,cat,dev\n", "got 'dev'"),
        ("path,label\nimages/99.png,cat\n", r"99\.png \(No such file"),
        ("path,label\nimages/\0.png,cat\n", "1 of 1 images cannot be read"),
        (f"path,label\nimages/10.png,{'x' * 200_000}\n", "labels.csv, line 2: not comma-separated values"),
    ],
)
def test_csv_table_mistakes_are_named(pack, table, text, why):
    with pytest.raises(ValueError, match=why):
        pack("folder", table(text))


@pytest.mark.parametrize("path", ["../private.png", "images/../../private.png", "{root}/private.png", "C:/x.png"])
def test_csv_table_reads_nothing_outside_its_folder(pack, table, make, tmp_path, path):
    make.file(tmp_path / "private.png", make.png(99))
    text = TABLES["header"] + path.format(root=tmp_path) + ",cat\n"
    with pytest.raises(UserError, match="outside its folder"):
        pack("folder", table(text))


def test_folder_broken_link_is_named(pack, make, tmp_path):
    folder = make.tree(tmp_path / "f", trees(make, ["cat"]))
    (folder / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    with pytest.raises(UserError, match=r"1 of 3 images cannot be read: cat/gone\.png \(No such file"):
        pack("folder", folder)


def test_folder_takes_any_file_name(pack, make, tmp_path):
    make.tree(tmp_path / "f", {"cat/1.png": make.png(1)})
    for name in (b"\xff\xfe.png", b"two\nlines.png", b"tab\t[red]bold.png"):
        with open(bytes(tmp_path / "f" / "cat") + b"/" + name, "wb") as file:  # noqa: PTH123
            file.write(make.png(2))
    assert len(pack("folder", tmp_path / "f").row_names()) == 5

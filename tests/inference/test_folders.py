import os

import pytest
from PIL import Image

from tapnet.errors import UserError
from tapnet.inference import Skipped, class_folders, find_images
from tapnet.inference.folders import copy_into_class


def folder_of(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (9, 9), hash(name) % 256).save(path) if path.suffix == ".png" else path.write_text("no image")
    return root


def test_files_that_are_no_images_are_counted_and_named_by_reason(tmp_path):
    folder_of(tmp_path, "a.png", "notes.txt", "raw.psd", ".hidden.png", ".DS_Store")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    skipped = Skipped()
    assert [path.name for path in find_images([tmp_path], skipped)] == ["a.png"]
    assert skipped.counts == {"hidden by its name": 1, "a link to nothing": 1, "not an image file extension": 2}
    assert any("notes.txt" in line and "raw.psd" in line for line in skipped.lines())


@pytest.mark.parametrize("name", ["a.avif", "a.heic", "a.HEIF"])
def test_images_of_newer_formats_are_taken_from_folders(name, tmp_path):
    (tmp_path / name).write_bytes(b"")
    assert [path.name for path in find_images([tmp_path])] == [name]


def test_class_without_images_is_left_out_and_named(tmp_path):
    folder_of(tmp_path, "robin/a.png", "wren/a.png")
    (tmp_path / "owl").mkdir()
    found = class_folders(tmp_path)
    assert list(found.classes) == ["robin", "wren"]
    assert found.skipped.counts == {"a folder without images": 1}


def test_image_beside_the_folders_of_classes_is_named(tmp_path):
    folder_of(tmp_path, "robin/a.png", "wren/a.png", "loose.png")
    assert class_folders(tmp_path).skipped.counts == {"not in the folder of a class": 1}


@pytest.mark.parametrize("names", [("train", "test"), ("Train", "val", "test"), ("training", "validation")])
def test_splits_are_not_taken_for_classes(names, tmp_path):
    folder_of(tmp_path, *(f"{name}/{each}/1.png" for name in names for each in ("robin", "wren")))
    with pytest.raises(UserError, match=f"splits .* give .*{names[0]} instead"):
        class_folders(tmp_path)


def test_class_called_train_beside_others_is_a_class(tmp_path):
    assert list(class_folders(folder_of(tmp_path, "train/1.png", "bus/1.png")).classes) == ["bus", "train"]


def test_folder_that_cannot_be_opened_is_named(tmp_path, monkeypatch):
    folder_of(tmp_path, "robin/a.png", "locked/a.png")
    scan = os.scandir

    def refusing(path):
        if "locked" in str(path):
            raise PermissionError(13, "Permission denied", str(path))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refusing)
    skipped = Skipped()
    assert len(list(find_images([tmp_path], skipped))) == 1
    assert skipped.counts == {"a folder that cannot be opened (Permission denied)": 1}


@pytest.mark.parametrize("label", ["../up", "a/b", "..", "c:\\d", "two\nlines", "robin"])
def test_copy_into_a_class_stays_below_the_folder(label, tmp_path):
    (tmp_path / "1.png").write_bytes(b"image")
    copy_into_class(tmp_path / "1.png", label, tmp_path / "sorted")
    (copy,) = (tmp_path / "sorted").glob("*/1.png")
    assert copy.read_bytes() == b"image"
    assert {path.name for path in tmp_path.iterdir()} == {"1.png", "sorted"}

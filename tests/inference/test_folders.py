import json
import os
import sys

import pytest
from PIL import Image

from tapnet.errors import UserError
from tapnet.inference import Skipped, class_folders, find_images, read_labels
from tapnet.inference.folders import copy_into_class
from tapnet.text import normalize_name


def folder_of(root, *names):
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (9, 9), hash(name) % 256).save(path) if path.suffix == ".png" else path.write_text("no image")
    return root


def test_files_that_are_no_images_are_counted_and_named_by_reason(tmp_path):
    folder_of(tmp_path, "a.png", "b.HEIF", "c.avif", "notes.txt", "raw.psd", ".hidden.png", ".DS_Store")
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    skipped = Skipped()
    assert [path.name for path in find_images([tmp_path], skipped)] == ["a.png", "b.HEIF", "c.avif"]
    assert skipped.counts == {"hidden by its name": 1, "a link to nothing": 1, "not an image file extension": 2}
    assert any("notes.txt" in line and "raw.psd" in line for line in skipped.lines())


def test_what_is_no_class_or_in_none_is_left_out_and_named(tmp_path):
    folder_of(tmp_path, "robin/a.png", "wren/a.png", "loose.png")
    (tmp_path / "owl").mkdir()
    labeled = class_folders(tmp_path)
    assert list(labeled.classes) == ["robin", "wren"]
    assert labeled.skipped.counts == {"a folder without images": 1, "not in the folder of a class": 1}


@pytest.mark.parametrize("names", [("train", "test"), ("Train", "val", "test"), ("training", "validation")])
def test_splits_are_not_taken_for_classes(names, tmp_path):
    folder_of(tmp_path, *(f"{name}/{label}/1.png" for name in names for label in ("robin", "wren")))
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


@pytest.fixture
def folder(tmp_path):
    for name in ("a.jpg", "b.jpg", "c, d.jpg"):
        (tmp_path / "images").mkdir(exist_ok=True)
        (tmp_path / "images" / name).write_bytes(b"")
    return tmp_path


def written(folder, text, name="labels.csv"):
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


ROBIN_AND_WREN = {"robin": ["a.jpg", "c, d.jpg"], "wren": ["b.jpg"]}


def names(labeled):
    return {name: [path.name for path in paths] for name, paths in labeled.classes.items()}


@pytest.mark.parametrize(
    "text",
    [
        'images/a.jpg,robin\nimages/b.jpg,wren\n"images/c, d.jpg",robin\n',
        'path,label\nimages/a.jpg,robin\nimages/b.jpg,wren\n\n"images/c, d.jpg",robin\n',
        'class,probability,file\nrobin,0.9,images/a.jpg\nwren,0.5,images/b.jpg\nrobin,0.4,"images/c, d.jpg"\n',
        "\ufeffFile;Class\r\nimages/a.jpg;robin\r\nimages/b.jpg;wren\r\nimages/c, d.jpg;robin\r\n",
        "images/a.jpg,robin\nimages/a.jpg,robin\nimages/b.jpg,wren\n'images/c, d.jpg',robin\n".replace("'", '"'),
    ],
    ids=["no heading", "heading", "other order", "semicolons", "a row twice"],
)
def test_labels_of_a_csv_file_are_read_with_paths_relative_to_it(text, folder):
    assert names(read_labels(written(folder, text))) == ROBIN_AND_WREN


def test_labels_of_json_lines_are_read_by_either_pair_of_names(folder):
    rows = [
        {"path": "images/a.jpg", "label": "robin"},
        {"file": "images/b.jpg", "class": "wren", "probability": 0.5},
        {"path": "images/c, d.jpg", "label": "robin"},
    ]
    text = "\n".join(map(json.dumps, rows))
    assert names(read_labels(written(folder, text, "labels.jsonl"))) == ROBIN_AND_WREN


def test_labels_leave_out_predictions_that_still_say_unknown(folder):
    text = "file,class,best_guess,probability\nimages/a.jpg,robin,robin,0.9\nimages/b.jpg,unknown,wren,0.3\n"
    labeled = read_labels(written(folder, text))
    assert names(labeled) == {"robin": ["a.jpg"]}
    assert len(labeled.skipped) == 1


def test_labels_find_a_file_with_a_line_separator_in_its_name(tmp_path):
    (tmp_path / "a\u2028b.png").write_bytes(b"")
    assert names(read_labels(written(tmp_path, "path,class\na\u2028b.png,cat\n"))) == {"cat": ["a\u2028b.png"]}


def test_labels_are_found_from_the_current_folder_too(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "out").mkdir()
    assert names(read_labels(written(folder / "out", "images/b.jpg,wren\n"))) == {"wren": ["b.jpg"]}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("path,label\nimages/a.jpg,robin\nimages/b.jpg\n", "line 3: expected a path and a class, got 'images/b.jpg'"),
        ("images/a.jpg,robin\nimages/b.jpg,\n", "line 2: expected a path and a class, got no class"),
        ("images/a.jpg,robin\nimages/none.jpg,wren\n", "line 2: there is no file images/none.jpg"),
        ("images/a.jpg,robin\nimages/a.jpg,wren\n", "line 2: .* of 'robin' in line 1: keep one"),
        (
            "photo,species\nimages/a.jpg,robin\n",
            "line 1: there is no file photo .* heading, it needs the columns path,",
        ),
        ("images/z.jpg,robin\n", r"line 1: there is no file images/z\.jpg in [^ ]+\.$"),
        ("path,label\n", "has no labeled image"),
        ("", "has no labeled image"),
    ],
)
def test_labels_with_a_wrong_row_are_refused_with_its_line(text, words, folder):
    with pytest.raises(UserError, match=words):
        read_labels(written(folder, text))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("labels.xlsx", b"a", r"Expected labels in a \.csv or \.jsonl file"),
        ("labels.csv", b"\xff\xfe\x00bad,\xff", "not a text file in UTF-8"),
        ("labels.csv", None, "There is no file"),
    ],
)
def test_file_without_labels_is_refused(name, content, words, tmp_path):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=words):
        read_labels(tmp_path / name)


@pytest.mark.parametrize("line", ["nonsense", "[1, 2]", '{"path": "images/a.jpg"}', '{"path": 1, "label": "x"}'])
def test_json_lines_with_a_wrong_row_are_refused_with_its_line(line, folder):
    text = '{"path": "images/a.jpg", "label": "robin"}\n' + line
    with pytest.raises(UserError, match="line 2: "):
        read_labels(written(folder, text, "labels.jsonl"))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such file names")
@pytest.mark.parametrize("name", ["two\nlines.jpg", "e\u0301.jpg", "tab\there/a.jpg", " spaces .jpg"])
def test_labels_find_a_file_by_its_name_as_predict_prints_it(name, tmp_path):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b"")
    labeled = read_labels(written(tmp_path, f"file,class\n{normalize_name(name)},robin\n"))
    assert labeled.classes == {"robin": [tmp_path / name]}

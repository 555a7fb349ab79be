"""The bundled drawings, real samples of Omniglot and miniImageNet, and downloads from a server on this machine."""

import hashlib
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from tapnet.cli import main
from tapnet.data import DATASETS, load_dataset
from tapnet.data.catalog import bundled_drawings, mini_imagenet_numbers
from tapnet.data.dataset import download
from tapnet.data.inspection import check
from tapnet.data.packing import PackOptions, prepare
from tapnet.data.preprocessing import Preprocessing
from tapnet.data.readers.files import open_file_tree


def quiet(_done, _all):
    pass


def test_quickdraw_splits_have_their_classes_and_share_none():
    drawings = {split: load_dataset("quickdraw", split) for split in ("train", "val", "test", "trainval")}
    assert [len(images.names) for images in drawings.values()] == [240, 45, 60, 285]
    assert all(len(images) == 100 * len(images.names) for images in drawings.values())
    assert len({name for images in drawings.values() for name in images.names}) == 345
    train, both = drawings["train"], drawings["trainval"]
    again = np.flatnonzero(both.labels == both.names.index(train.names[239]))
    assert np.array_equal(train.gather(np.flatnonzero(train.labels == 239)), both.gather(again))


def test_quickdraw_is_centred_bright_ink_on_black_in_sixteen_levels():
    pixels = bundled_drawings()
    assert pixels.shape == (34500, 28, 28, 1)
    assert np.median(pixels) == 0
    assert np.array_equal(np.unique(pixels), np.arange(16) * 17)
    ink = pixels[..., 0] > 0
    for axis in (1, 2):
        line = ink.any(axis=3 - axis)
        before, after = line.argmax(axis=1), line[:, ::-1].argmax(axis=1)
        assert (abs(before - after) <= 2).mean() > 0.99  # rounding, and faint edges that quantise to nothing


def test_quickdraw_file_is_the_one_that_the_tool_built_and_is_checked_like_any_other():
    findings = check(DATASETS["quickdraw"], DATASETS["quickdraw"].open(), quiet)  # raises if the digest is another one
    assert {finding.subject: finding.good for finding in findings}["published images"]


def test_load_dataset_unknown_split_lists_the_choices():
    with pytest.raises(ValueError, match=r"train, val, test, trainval, all, got 'dev'"):
        load_dataset("quickdraw", "dev")


@pytest.fixture(scope="module")
def omniglot(shared, tmp_path_factory):
    folder = tmp_path_factory.mktemp("omniglot")
    return prepare(DATASETS["omniglot"], shared / "omniglot", folder, PackOptions())


def test_omniglot_splits_have_their_characters_and_training_has_rotations(omniglot):
    characters = {"train": 1028, "val": 172, "test": 423, "trainval": 1200, "background": 964, "evaluation": 659}
    for split, count in characters.items():
        drawings = load_dataset("omniglot", split, omniglot.folder.parent)
        assert len(drawings.names) == count
        assert (np.bincount(drawings.row_labels) == 20).all()
        assert drawings.rotations == (4 if split in ("train", "trainval", "background") else 1)


def test_omniglot_test_can_have_1692_rotated_classes(omniglot):
    drawings = load_dataset("omniglot", "test", omniglot.folder.parent, rotations=4, one_rotation_per_class=True)
    assert len(drawings.class_names) == 1692
    drawn, rotated = drawings.gather(np.array([7, 7 + 423 * 20]))
    assert np.array_equal(rotated, np.rot90(drawn))
    episodes = drawings.episodes(60, 1, 1).batch(0, 20)
    assert all(len({label % 423 for label in classes}) == 60 for classes in episodes.classes)


def test_omniglot_ink_is_bright_and_recorded_with_the_filter(omniglot):
    assert np.median(omniglot.pixels[:500]) == 0
    assert omniglot.pixels[:500].max() > 200
    manifest = omniglot.manifest
    assert (manifest.preprocessing, manifest.resized) == (Preprocessing(28, 28, 1, ink="bright"), 32460)


def test_omniglot_extracted_folders_give_the_same_pixels(shared, tmp_path, pack, make):
    zipped = open_file_tree(shared / "omniglot" / "images_background.zip")
    files = dict(zipped.read({name for name in zipped.names if "/Greek/" in name}))
    folder, archive = make.tree(tmp_path / "extracted", files), make.zip(tmp_path / "few.zip", files)
    packed = pack("omniglot", archive, name="zip")
    assert len(packed.manifest.classes) == 24
    assert pack("omniglot", folder).manifest.sha256 == packed.manifest.sha256


@pytest.fixture(scope="module")
def mini_imagenet(shared, tmp_path_factory):
    """24 images of each class."""
    folder = tmp_path_factory.mktemp("mini")
    return prepare(DATASETS["mini-imagenet"], shared / "mini-imagenet-sample.zip", folder, PackOptions())


def test_mini_imagenet_splits_have_their_classes(mini_imagenet):
    for split, classes in {"train": 64, "val": 16, "test": 20, "trainval": 80, "all": 100}.items():
        images = load_dataset("mini-imagenet", split, mini_imagenet.folder.parent)
        assert (len(images.names), len(images)) == (classes, 24 * classes)


def test_mini_imagenet_sample_is_not_resized_and_told_from_the_published_set(mini_imagenet):
    assert mini_imagenet.manifest.resized == 0
    findings = {finding.subject: finding for finding in check(DATASETS["mini-imagenet"], mini_imagenet, quiet)}
    assert not findings["published images"].good
    words = "60,000, and this has 2,400, in 100 classes not 600: accuracies are not comparable"
    assert words in findings["published images"].words


def test_mini_imagenet_list_names_600_images_of_each_class_those_of_the_sample_among_them(mini_imagenet):
    assert set(mini_imagenet_numbers()) == DATASETS["mini-imagenet"].classes
    assert all(len(set(numbers)) == 600 and max(numbers) <= 1300 for numbers in mini_imagenet_numbers().values())
    rows = mini_imagenet.row_names()[:-1]
    assert all(int(row[-12:-4]) in mini_imagenet_numbers()[row[:9]] for row in rows)
    assert np.unique(rows).size == 2400


CONTENT = bytes(range(256)) * 4000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        content = self.server.files.get(self.path, CONTENT)
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: self.server.cut])

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """Serves CONTENT, or a file of `files`, at every path; `cut` ends it early."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.files, server.cut = {}, None
        server.home = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=[0.01], daemon=True).start()
        yield server
        server.shutdown()


def test_download_gives_the_whole_file_with_progress_up_to_the_end(server, tmp_path):
    seen = []
    path = download(f"{server.home}/images.zip", MD5, tmp_path, lambda *done: seen.append(done))
    assert path.read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["images.zip"]
    assert seen[-1] == (len(CONTENT), len(CONTENT))


@pytest.mark.parametrize(
    ("cut", "md5", "error", "words"),
    [
        (None, "0" * 32, ValueError, "another content than was published"),
        (300_000, MD5, ConnectionError, "again"),
    ],
)
def test_download_of_another_content_or_cut_off_leaves_nothing_and_can_be_repeated(
    server, tmp_path, cut, md5, error, words
):
    server.cut = cut
    with pytest.raises(error, match=words):
        download(f"{server.home}/images.zip", md5, tmp_path, quiet)
    assert list(tmp_path.iterdir()) == []
    server.cut = None
    assert download(f"{server.home}/images.zip", MD5, tmp_path, quiet).read_bytes() == CONTENT


def test_download_does_not_fetch_what_is_there_and_says_what_to_do_without_a_network(tmp_path):
    unreachable = "http://127.0.0.1:9/images.zip"
    with pytest.raises(ConnectionError, match=r"could not be fetched .*tapnet data prepare"):
        download(unreachable, MD5, tmp_path, quiet)
    (tmp_path / "images.zip").write_bytes(CONTENT)
    assert download(unreachable, MD5, tmp_path, quiet).read_bytes() == CONTENT


def test_download_omniglot_fetches_and_prepares_it(server, tmp_path, make, monkeypatch, capsys):
    drawings = {"images_background": "Greek/character01/0394_01", "images_evaluation": "Gurmukhi/character42/1_01"}
    for name, drawing in drawings.items():
        archive = make.zip(tmp_path / name, {f"{name}/{drawing}.png": make.png(9)})
        server.files[f"/{name}.zip"] = archive.read_bytes()
    remote = {server.home + path: hashlib.md5(content).hexdigest() for path, content in server.files.items()}
    monkeypatch.setitem(DATASETS, "omniglot", replace(DATASETS["omniglot"], downloads=remote))
    assert main(["data", "download", "omniglot", "--root", str(tmp_path / "root")]) == 0
    assert "omniglot is ready" in capsys.readouterr().out


def test_download_of_a_licensed_set_says_where_it_comes_from_and_what_is_read(tmp_path, capsys):
    assert main(["data", "download", "mini-imagenet", "--root", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert "image-net.org" in printed.out
    assert "mini-imagenet-cache-train.pkl" in printed.out
    assert "tapnet data prepare mini-imagenet --from PATH" in printed.err

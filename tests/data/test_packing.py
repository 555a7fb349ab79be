import errno
import os
import shutil
import tracemalloc

import numpy as np
import pytest
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st

from tapnet.data import ImageSet, load_dataset, packing
from tapnet.data import packed as packed_module
from tapnet.data.packed import open_packed, sha256_of
from tapnet.data.preprocessing import Preprocessing
from tapnet.errors import UserError


@pytest.fixture
def pets(tmp_path, make):
    """Three classes of four plain images."""
    files = {f"{name}/{value}.png": make.png(value) for name in ("cat", "dog", "emu") for value in (10, 20, 30, 40)}
    return make.tree(tmp_path / "pets", files)


def files_in(root):
    return sorted(path.name for path in root.iterdir() if path.suffix != ".lock")


def test_prepare_packs_every_image_class_after_class_and_leaves_nothing_else(pack, pets, reds, tmp_path):
    packed = pack("folder", pets, size=8)
    assert packed.pixels.shape == (12, 8, 8, 3)
    assert list(packed.manifest.classes) == ["cat", "dog", "emu"]
    assert reds(packed, "dog") == [10, 20, 30, 40]
    assert files_in(tmp_path / "root") == ["folder"]
    assert files_in(tmp_path / "root" / "folder") == ["images.npy", "manifest.json", "rows.txt", "verified.json"]


@pytest.mark.parametrize("ending", ["folder", "zip", "tar.gz"])
def test_prepare_gives_the_same_from_an_archive_and_in_any_order_of_files(pack, make, tmp_path, pets, ending):
    names = sorted((path.relative_to(pets).as_posix() for path in pets.rglob("*.png")), reverse=True)
    files, path = {name: (pets / name).read_bytes() for name in names}, tmp_path / f"again.{ending}"
    {"folder": make.tree, "zip": make.zip}.get(ending, lambda *parts: make.tar(*parts, "w:gz"))(path, files)
    first, second = pack("folder", pets, size=8), pack("folder", path, size=8, name="again")
    assert first.manifest.sha256 == second.manifest.sha256
    assert first.row_names() == second.row_names()


def test_prepare_records_how_it_was_made_and_replaces_a_set_only_when_told_to(pack, pets):
    manifest = pack("folder", pets, size=8, filter="box", fit="crop").manifest
    assert (manifest.preprocessing, manifest.resized) == (Preprocessing(8, 8, 3, "box", "crop"), 12)
    with pytest.raises(UserError, match="or overwrite it"):
        pack("folder", pets, size=9)
    assert pack("folder", pets, size=9, overwrite=True).pixels.shape[1] == 9


@pytest.mark.parametrize("beside_a_set", [False, True])
def test_prepare_never_deletes_files_of_other_kinds(pack, pets, tmp_path, beside_a_set, make):
    if beside_a_set:
        pack("folder", pets, size=8, name="mine")
    own = make.file(tmp_path / "root" / "mine" / "cat.png", b"a photograph")
    with pytest.raises(UserError, match=r"would be deleted \(cat\.png\)"):
        pack("folder", pets, size=8, name="mine", overwrite=True)
    assert own.read_bytes() == b"a photograph"


def test_prepare_writes_nothing_without_a_name_or_where_there_is_nothing_to_pack(pack, pets, tmp_path):
    with pytest.raises(UserError, match="got ''"):
        pack("folder", pets, size=8, name="")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="Expected one of"):
        pack("omniglot", tmp_path / "empty")
    assert not (tmp_path / "root").exists()


class Stop(Exception):
    pass


@pytest.fixture
def stopped(tmp_path, make, pack):
    """Two classes of 150 images, more than one batch, of which 128 were packed when the preparation was stopped."""

    def progress(done, _total):
        if done >= 100:
            raise Stop

    many = make.tree(tmp_path / "many", {f"{c}/{v:03d}.png": make.png(v, (8, 8)) for c in "ab" for v in range(150)})
    with pytest.raises(Stop):
        pack("folder", many, size=8, progress=progress)
    return many


def test_prepare_interrupted_leaves_nothing_that_looks_whole_and_resumes_where_it_stopped(pack, stopped, tmp_path):
    assert files_in(tmp_path / "root") == [".folder.partial"]
    with pytest.raises(FileNotFoundError, match="not prepared"):
        load_dataset("folder", "all", tmp_path / "root")
    lines, seen = [], []
    packed = pack("folder", stopped, size=8, log=lines.append, progress=lambda done, _: seen.append(done))
    assert any("128 of 300 images are done" in sentence for sentence in lines)
    assert seen[0] > 128
    assert packed.manifest.sha256 == pack("folder", stopped, size=8, name="at-once").manifest.sha256


def test_prepare_packs_files_again_that_changed_since_it_stopped(pack, stopped, make, reds):
    """Also if their time was set back, as `cp --preserve` does; the two images have the same number of bytes."""
    path = stopped / "a" / "000.png"
    before, size = path.stat().st_mtime_ns, path.stat().st_size
    make.file(path, make.png(222, (8, 8)))
    os.utime(path, ns=(before, before))
    assert path.stat().st_size == size
    seen = []
    packed = pack("folder", stopped, size=8, progress=lambda done, _: seen.append(done))
    assert reds(packed, "a")[:2] == [222, 1]
    assert seen[0] > 64, "what did not change is not packed again"


def test_prepare_packs_an_array_file_again_that_changed_since_it_stopped(pack, tmp_path):
    def save(value):
        np.savez(tmp_path / "npz" / "train.npz", n01532829=np.full((300, 8, 8, 3), value, np.uint8))

    def progress(_done, _total):
        raise Stop

    (tmp_path / "npz").mkdir()
    save(1)
    with pytest.raises(Stop):
        pack("mini-imagenet", tmp_path / "npz", size=8, progress=progress)
    save(2)
    assert (pack("mini-imagenet", tmp_path / "npz", size=8).pixels == 2).all()


@pytest.mark.parametrize("name", ["state.bin", "images.npy", "plan.txt", "added"])
def test_prepare_starts_anew_when_its_own_files_are_cut_short_or_others_were_added(pack, stopped, make, tmp_path, name):
    if name == "added":
        make.file(stopped / "a" / "999.png", make.png(99, (8, 8)))
    else:
        path = tmp_path / "root" / ".folder.partial" / name
        path.write_bytes(path.read_bytes()[:20])
    lines = []
    packed = pack("folder", stopped, size=8, log=lines.append)
    assert packed.manifest.sha256 == pack("folder", stopped, size=8, name="b").manifest.sha256
    assert not any("Resuming" in sentence for sentence in lines)


def test_prepare_names_every_bad_image_and_skips_them_when_told_to(pack, pets, make, reds):
    make.file(pets / "cat" / "15.png", make.png(15)[:40])
    make.file(pets / "gnu" / "words.jpg", b"these are words")
    with pytest.raises(ValueError, match=r"2 of 14 images cannot be read: cat/15\.png .*gnu/words\.jpg .*or skip them"):
        pack("folder", pets, size=8)
    packed = pack("folder", pets, size=8, skip_bad=True)
    assert reds(packed, "cat") == [10, 20, 30, 40]
    assert len(packed.image_set("all")) == 12
    assert len(packed.manifest.left_out) == 2
    assert "gnu" not in packed.image_set("all").names, "a class without a good image is no class"


def test_prepare_second_one_at_once_is_refused(pack, pets, tmp_path):
    (tmp_path / "root").mkdir()
    with FileLock(tmp_path / "root" / ".folder.lock"), pytest.raises(BlockingIOError, match="Another process"):
        pack("folder", pets, size=8)
    assert pack("folder", pets, size=8)


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["write", "fsync", "disk_usage"])
def test_prepare_full_disk_is_one_clear_sentence_and_can_be_resumed(pack, pets, monkeypatch, tmp_path, call):
    """A disk without room for it is noticed before anything is written."""
    usage = shutil.disk_usage("/")._replace(free=100)
    with monkeypatch.context() as patch:
        patch.setattr(*(packing.shutil, call, lambda _: usage) if call == "disk_usage" else (packing.os, call, full))
        with pytest.raises(OSError, match=r"The disk is full: .*choose another folder"):
            pack("folder", pets, size=8)
    assert not (tmp_path / "root" / "folder").exists()
    assert len(pack("folder", pets, size=8).pixels) == 12


def test_prepare_memory_stays_small_for_an_npz_of_any_size(pack, tmp_path):
    """The array has 180 MB, its file a few; packed to one pixel per image, so that the disk sees nothing of it."""
    np.savez_compressed(tmp_path / "train.npz", n01532829=np.zeros((60, 1000, 1000, 3), np.uint8))
    tracemalloc.start()
    assert len(pack("mini-imagenet", tmp_path / "train.npz", size=1).pixels) == 60
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100e6


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        *(
            ("manifest.json", lambda _, content=content: content, "cannot be used .*prepare the dataset again")
            for content in (b"", b"[]", b"{}", b'{"format": 1}', b'{"format": 99}', b"\x00")
        ),
        ("images.npy", lambda content: content[:-1], "cannot be read .*prepare it again"),
        (
            "images.npy",
            lambda content: content[:-1] + bytes([content[-1] ^ 255]),
            "were replaced: expected sha-256 .* got .*Prepare them again",
        ),
    ],
)
def test_packed_refuses_files_that_were_cut_off_or_replaced(pack, pets, tmp_path, name, damage, words):
    path = pack("folder", pets, size=8).folder / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=words):
        load_dataset("folder", "all", tmp_path / "root")


def test_packed_maps_its_file_and_tells_splits_apart(pack, pets):
    packed = pack("folder", pets, size=8)
    images = packed.image_set("all")
    assert isinstance(images.pixels, np.memmap)
    assert images.gather(np.array([[0, 11]])).shape == (1, 2, 8, 8, 3)
    assert images.fingerprint == packed.image_set("all").fingerprint != packed.image_set("train").fingerprint


def test_packed_computes_the_digest_only_when_its_file_changed_and_keeps_it_if_it_can(pack, pets, monkeypatch):
    folder = pack("folder", pets, size=8).folder
    calls = []
    monkeypatch.setattr(packed_module, "sha256_of", lambda path: calls.append(path) or sha256_of(path))
    assert len(open_packed(folder).pixels) == 12
    assert not calls
    os.utime(folder / "images.npy", (1, 1))  # a copy
    for _ in range(2):
        assert len(open_packed(folder).pixels) == 12
    assert len(calls) == 1
    (folder / "verified.json").unlink()
    monkeypatch.setattr(packed_module, "write_atomically", full)
    assert len(open_packed(folder).pixels) == 12


def test_load_dataset_finds_own_sets_in_the_root_of_the_environment_and_lists_them(monkeypatch, tmp_path, pack, pets):
    monkeypatch.setenv("TAPNET_DATA", str(tmp_path / "root"))
    pack("folder", pets, size=8, name="pets")
    assert len(load_dataset("pets", "all")) == 12
    with pytest.raises(ValueError, match=r"no dataset 'cats' here: choose one of .*folder, pets\."):
        load_dataset("cats", "all")


def test_load_dataset_takes_rotations_by_split_and_names_its_options():
    wanted = {"train": 4, "val": 1}
    rotations = {split: load_dataset("quickdraw", split, rotations=wanted).rotations for split in (*wanted, "test")}
    assert rotations == {"train": 4, "val": 1, "test": 1}
    with pytest.raises(ValueError, match="rotations and one_rotation_per_class, got color"):
        load_dataset("quickdraw", "test", color="red")


def image_set(rotations=1, side=5):
    pixels = np.random.default_rng(0).integers(0, 256, (12, side, 5, 3), dtype=np.uint8)
    rows, labels = np.array([1, 4, 7, 10]), np.array([0, 0, 1, 1])
    return ImageSet("set", "test", pixels, rows, labels, ("a", "b"), "0" * 64, rotations)


@given(st.lists(st.integers(0, 15), min_size=1, max_size=20))
def test_gather_rotates_copies_of_images_as_their_positions_say(positions):
    images = image_set(rotations=4)
    before = images.pixels.copy()
    for position, gathered in zip(positions, images.gather(np.array(positions)), strict=True):
        rotation, row = divmod(position, 4)
        assert np.array_equal(gathered, np.rot90(before[images.rows[row]], rotation))
    assert np.array_equal(images.pixels, before)


def test_rotated_classes_have_labels_and_names_of_their_own_and_a_common_group():
    images = image_set(rotations=4)
    assert images.labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7]
    assert images.class_names[3] == "b (90°)"
    assert images.groups.tolist() == [0, 1] * 4
    for options, words in (({"rotations": 2}, "got 2"), ({"rotations": 4, "side": 6}, "Only square images")):
        with pytest.raises(ValueError, match=words):
            image_set(**options)

import errno
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from filelock import FileLock

from tapnet.data import load_dataset, packing
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


def test_prepare_packs_every_image_class_after_class(pack, pets, reds):
    packed = pack("folder", pets, size=8)
    assert packed.pixels.shape == (12, 8, 8, 3)
    assert list(packed.manifest.classes) == ["cat", "dog", "emu"]
    assert reds(packed, "dog") == [10, 20, 30, 40]


def test_prepare_leaves_the_dataset_and_nothing_else(pack, pets, tmp_path):
    pack("folder", pets, size=8)
    assert files_in(tmp_path / "root") == ["folder"]
    assert files_in(tmp_path / "root" / "folder") == ["images.npy", "manifest.json", "rows.txt", "verified.json"]


def test_prepare_does_not_depend_on_the_order_of_the_file_system(pack, make, tmp_path, pets):
    names = sorted(path.relative_to(pets) for path in pets.rglob("*.png"))
    backwards = make.tree(tmp_path / "backwards", {name: (pets / name).read_bytes() for name in reversed(names)})
    first, second = pack("folder", pets, size=8), pack("folder", backwards, size=8, name="again")
    assert first.manifest.sha256 == second.manifest.sha256
    assert (first.folder / "rows.txt").read_text() == (second.folder / "rows.txt").read_text()


@pytest.mark.parametrize("ending", ["zip", "tar", "tar.gz"])
def test_prepare_gives_the_same_from_an_archive(pack, make, tmp_path, pets, ending):
    files = {str(path.relative_to(pets)): path.read_bytes() for path in pets.rglob("*.png")}
    kind, _, compression = ending.partition(".")
    path = tmp_path / f"pets.{ending}"
    make.zip(path, files) if kind == "zip" else make.tar(path, files, f"w:{compression}")
    assert pack("folder", path, size=8, name="b").manifest.sha256 == pack("folder", pets, size=8).manifest.sha256


def test_prepare_records_how_it_was_made(pack, pets):
    manifest = pack("folder", pets, size=8, filter="box", fit="crop").manifest
    assert (manifest.preprocessing, manifest.resized) == (Preprocessing(8, 8, 3, "box", "crop"), 12)


def test_prepare_keeps_a_set_that_is_there(pack, pets):
    pack("folder", pets, size=8)
    with pytest.raises(UserError, match="or overwrite it"):
        pack("folder", pets, size=9)


def test_prepare_overwrites_when_told_to(pack, pets):
    pack("folder", pets, size=8)
    assert pack("folder", pets, size=9, overwrite=True).pixels.shape[1] == 9


@pytest.mark.parametrize("overwrite", [False, True])
def test_prepare_never_replaces_a_folder_of_other_files(pack, pets, tmp_path, overwrite):
    own = tmp_path / "root" / "mine" / "cat.png"
    own.parent.mkdir(parents=True)
    own.write_bytes(b"a photograph")
    with pytest.raises(UserError, match=r"would be deleted \(cat\.png\)"):
        pack("folder", pets, size=8, name="mine", overwrite=overwrite)
    assert own.read_bytes() == b"a photograph"


def test_prepare_overwrite_keeps_a_file_that_was_put_beside_the_images(pack, pets):
    folder = pack("folder", pets, size=8).folder
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(UserError, match="notes"):
        pack("folder", pets, size=9, overwrite=True)
    assert (folder / "notes.txt").exists()


def test_prepare_writes_nothing_where_there_is_nothing_to_pack(pack, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError):
        pack("omniglot", tmp_path / "empty")
    assert not (tmp_path / "root").exists()


def test_prepare_refuses_an_empty_name(pack, pets):
    with pytest.raises(UserError, match="got ''"):
        pack("folder", pets, size=8, name="")


class Stop(Exception):
    pass


def stop_after(images):
    def progress(done, _total):
        if done >= images:
            raise Stop

    return progress


@pytest.fixture
def many(tmp_path, make):
    """Two classes of 150 images, more than one batch."""
    return make.tree(tmp_path / "many", {f"{c}/{v:03d}.png": make.png(v, (8, 8)) for c in "ab" for v in range(150)})


def test_prepare_interrupted_leaves_nothing_that_looks_whole(pack, many, tmp_path):
    with pytest.raises(Stop):
        pack("folder", many, size=8, progress=stop_after(100))
    assert files_in(tmp_path / "root") == [".folder.partial"]
    with pytest.raises(FileNotFoundError, match="not prepared"):
        load_dataset("folder", "all", tmp_path / "root")


def test_prepare_resumes_where_it_stopped(pack, many):
    with pytest.raises(Stop):
        pack("folder", many, size=8, progress=stop_after(100))
    lines, seen = [], []
    packed = pack("folder", many, size=8, log=lines.append, progress=lambda done, _: seen.append(done))
    assert any("128 of 300 images are done" in sentence for sentence in lines)
    assert seen[0] > 128
    assert packed.manifest.sha256 == pack("folder", many, size=8, name="at-once").manifest.sha256


def test_prepare_starts_anew_when_the_source_or_the_options_changed(pack, many, make):
    with pytest.raises(Stop):
        pack("folder", many, size=8, progress=stop_after(100))
    make.file(many / "a" / "999.png", make.png(99, (8, 8)))
    lines = []
    assert len(pack("folder", many, size=8, log=lines.append).pixels) == 301
    assert not any("Resuming" in sentence for sentence in lines)


def test_prepare_packs_files_again_that_changed_since_it_stopped(pack, many, make, reds):
    with pytest.raises(Stop):
        pack("folder", many, size=8, progress=stop_after(100))
    make.file(many / "a" / "000.png", make.png(222, (8, 8)))
    seen = []
    packed = pack("folder", many, size=8, progress=lambda done, _: seen.append(done))
    assert reds(packed, "a")[:2] == [222, 1]
    assert seen[0] > 64, "what did not change is not packed again"


def test_prepare_packs_a_file_again_whose_time_was_set_back(pack, many, make, reds):
    """As `cp --preserve` does; the two images have the same number of bytes."""
    with pytest.raises(Stop):
        pack("folder", many, size=8, progress=stop_after(100))
    path = many / "a" / "000.png"
    before, size = path.stat().st_mtime_ns, path.stat().st_size
    make.file(path, make.png(222, (8, 8)))
    os.utime(path, ns=(before, before))
    assert path.stat().st_size == size
    assert reds(pack("folder", many, size=8), "a")[:2] == [222, 1]


def test_prepare_packs_an_array_file_again_that_changed_since_it_stopped(pack, tmp_path):
    def save(value):
        np.savez(tmp_path / "npz" / "train.npz", n01532829=np.full((300, 8, 8, 3), value, np.uint8))

    (tmp_path / "npz").mkdir()
    save(1)
    with pytest.raises(Stop):
        pack("mini-imagenet", tmp_path / "npz", size=8, progress=stop_after(100))
    save(2)
    assert (pack("mini-imagenet", tmp_path / "npz", size=8).pixels == 2).all()


@pytest.mark.parametrize("name", ["state.bin", "images.npy", "plan.txt"])
@pytest.mark.parametrize("keep", [0, 100])
def test_prepare_starts_anew_when_its_own_files_are_cut_short(pack, many, tmp_path, name, keep):
    with pytest.raises(Stop):
        pack("folder", many, size=8, progress=stop_after(100))
    path = tmp_path / "root" / ".folder.partial" / name
    path.write_bytes(path.read_bytes()[:keep])
    assert pack("folder", many, size=8).manifest.sha256 == pack("folder", many, size=8, name="b").manifest.sha256


@pytest.fixture
def spoilt(pets, make):
    make.file(pets / "cat" / "15.png", make.png(15)[:40])
    make.file(pets / "dog" / "words.jpg", b"these are words")
    return pets


def test_prepare_names_every_bad_image_and_says_how_to_continue(pack, spoilt):
    with pytest.raises(ValueError, match=r"2 of 14 images cannot be read: cat/15\.png .*dog/words\.jpg .*or skip them"):
        pack("folder", spoilt, size=8)


def test_prepare_skip_bad_packs_the_others(pack, spoilt, reds):
    packed = pack("folder", spoilt, size=8, skip_bad=True)
    assert reds(packed, "cat") == [10, 20, 30, 40]
    assert len(packed.image_set("all")) == 12
    assert len(packed.manifest.left_out) == 2


def test_prepare_class_without_a_good_image_is_no_class(pack, pets, make):
    make.file(pets / "gnu" / "1.png", b"no image")
    packed = pack("folder", pets, size=8, skip_bad=True)
    assert "gnu" not in packed.image_set("all").names


def test_prepare_second_one_at_once_is_refused(pack, pets, tmp_path):
    (tmp_path / "root").mkdir()
    with FileLock(tmp_path / "root" / ".folder.lock"), pytest.raises(BlockingIOError, match="Another process"):
        pack("folder", pets, size=8)
    assert pack("folder", pets, size=8)


def test_prepare_two_processes_make_one_whole_dataset(many, tmp_path):
    command = [sys.executable, "-m", "tapnet", "data", "prepare", "folder", "--from", str(many), "--root"]
    both = [subprocess.Popen([*command, str(tmp_path / "r")], stderr=subprocess.PIPE) for _ in range(2)]
    errors = [process.communicate()[1].decode() for process in both]
    assert sorted(process.returncode for process in both) == [0, 2], errors
    packed = open_packed(tmp_path / "r" / "folder")
    assert sha256_of(packed.folder / "images.npy") == packed.manifest.sha256


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["posix_fallocate", "write", "fsync"])
def test_prepare_full_disk_is_one_clear_sentence(pack, pets, monkeypatch, tmp_path, call):
    monkeypatch.setattr(packing.os, call, full)
    with pytest.raises(OSError, match=r"The disk is full: .*choose another folder"):
        pack("folder", pets, size=8)
    assert not (tmp_path / "root" / "folder").exists()


def test_prepare_asks_for_room_before_it_starts(pack, pets, monkeypatch):
    usage = packing.shutil.disk_usage("/")
    monkeypatch.setattr(packing.shutil, "disk_usage", lambda _: usage._replace(free=100))
    with pytest.raises(OSError, match="The disk is full"):
        pack("folder", pets, size=8)


def test_prepare_resumes_after_a_full_disk(pack, many, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(packing.os, "write", full)
        with pytest.raises(OSError, match="full"):
            pack("folder", many, size=8)
    assert len(pack("folder", many, size=8).pixels) == 300


def test_prepare_memory_stays_small_for_an_npz_of_any_size(tmp_path):
    """The array is 0.6 GB, its file a few MB; packed to one pixel per image, so that the disk sees nothing of it."""
    script = f"""
        import resource, zipfile
        from pathlib import Path
        import numpy as np
        from tapnet.data import DATASETS
        from tapnet.data.packing import PackOptions, prepare

        peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        folder = Path({str(tmp_path)!r})
        with zipfile.ZipFile(folder / "train.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            with archive.open("n01532829.npy", "w", force_zip64=True) as file:
                header = {{"descr": "|u1", "fortran_order": False, "shape": (200, 1000, 1000, 3)}}
                np.lib.format.write_array_header_1_0(file, header)
                for _ in range(200):
                    file.write(bytes(1000 * 1000 * 3))
        before = peak()
        packed = prepare(DATASETS["mini-imagenet"], folder, folder / "root", PackOptions(size=1))
        assert len(packed.pixels) == 200
        print((peak() - before) // 1024)
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    assert int(run.stdout) < 150


def test_packed_refuses_another_format(pack, pets):
    packed = pack("folder", pets, size=8)
    path = packed.folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(ValueError, match=r"format 99.*prepare the dataset again"):
        open_packed(packed.folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": 1}', "\x00"])
def test_packed_refuses_a_damaged_manifest(pack, pets, content):
    packed = pack("folder", pets, size=8)
    (packed.folder / "manifest.json").write_text(content)
    with pytest.raises(ValueError, match="cannot be used"):
        open_packed(packed.folder)


@pytest.mark.parametrize(
    ("lost", "words"), [(1, "cannot be read"), (1000, r"cut off: 1,\d\d\d bytes of at least 2,304")]
)
def test_packed_refuses_images_that_are_cut_off(pack, pets, tmp_path, lost, words):
    path = pack("folder", pets, size=8).folder / "images.npy"
    path.write_bytes(path.read_bytes()[:-lost])
    with pytest.raises(ValueError, match=f"{words}.*prepare it again"):
        load_dataset("folder", "all", tmp_path / "root")


def test_packed_maps_its_file_and_reads_only_what_is_gathered(pack, pets):
    images = pack("folder", pets, size=8).image_set("all")
    assert isinstance(images.pixels, np.memmap)
    assert images.gather(np.array([[0, 11]])).shape == (1, 2, 8, 8, 3)


def test_packed_fingerprint_tells_splits_apart(pack, many):
    packed = pack("folder", many, size=8)
    splits = [packed.image_set(split).fingerprint for split in ("all", "trainval")]
    assert len({*splits, packed.image_set("all").fingerprint}) == len(set(splits))


def overwrite_last_byte(folder):
    path = folder / "images.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 255
    path.write_bytes(content)


def test_packed_notices_that_its_pixels_were_overwritten(pack, pets, tmp_path):
    overwrite_last_byte(pack("folder", pets, size=8).folder)
    with pytest.raises(UserError, match=r"were replaced: expected sha-256 .* got .*Prepare them again"):
        load_dataset("folder", "all", tmp_path / "root")


def test_packed_computes_the_digest_only_when_its_file_changed(pack, pets, monkeypatch):
    folder = pack("folder", pets, size=8).folder
    calls = []
    monkeypatch.setattr(packed_module, "sha256_of", lambda path: calls.append(path) or sha256_of(path))
    assert len(open_packed(folder).pixels) == 12
    assert not calls
    os.utime(folder / "images.npy", (1, 1))  # a copy, or an older version's set
    for _ in range(2):
        assert len(open_packed(folder).pixels) == 12
    assert len(calls) == 1


def test_packed_in_a_folder_that_cannot_be_written_is_read(pack, pets, monkeypatch):
    folder = pack("folder", pets, size=8).folder
    (folder / "verified.json").unlink()
    monkeypatch.setattr(Path, "write_text", full)
    assert len(open_packed(folder).pixels) == 12


def test_data_root_is_taken_from_the_environment(monkeypatch, tmp_path, pack, pets):
    monkeypatch.setenv("TAPNET_DATA", str(tmp_path / "root"))
    pack("folder", pets, size=8, name="pets")
    assert len(load_dataset("pets", "all")) == 12


def test_load_dataset_unknown_name_lists_own_sets_too(pack, pets, tmp_path):
    pack("folder", pets, size=8, name="pets")
    with pytest.raises(ValueError, match=r"no dataset 'cats' here: choose one of .*folder, pets\."):
        load_dataset("cats", "all", tmp_path / "root")


def test_load_dataset_unknown_option_names_the_one_there_is():
    with pytest.raises(ValueError, match="`rotations` and `one_rotation_per_class`, got color"):
        load_dataset("quickdraw", "test", color="red")


def test_load_dataset_rotations_can_differ_between_splits():
    rotations = {"train": 4, "val": 1}
    assert [load_dataset("quickdraw", split, rotations=rotations).rotations for split in ("train", "val", "test")] == [
        4,
        1,
        1,
    ]

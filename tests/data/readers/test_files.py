import io
import os
import tarfile
import tracemalloc
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapnet.data.preprocessing import Unreadable
from tapnet.data.readers import files as files_module
from tapnet.data.readers.files import open_file_tree
from tapnet.errors import UserError

FILES = {"a/one.txt": b"1", "a/b/two.txt": b"22", "ümlaut/three.txt": b"3" * 30}


@pytest.fixture(params=["folder", "zip", "tar", "tar.gz", "tar.xz"])
def tree(request, tmp_path, make):
    path = tmp_path / f"files.{request.param}"
    kind, _, compression = request.param.partition(".")
    if kind == "folder":
        return open_file_tree(make.tree(path, FILES))
    return open_file_tree(make.zip(path, FILES) if kind == "zip" else make.tar(path, FILES, f"w:{compression}"))


def test_tree_has_the_same_files_in_every_medium(tree):
    assert tree.names == sorted(FILES)
    wanted = {"a/one.txt", "ümlaut/three.txt"}
    assert dict(tree.read(wanted)) == {name: FILES[name] for name in wanted}
    with tree.open("a/b/two.txt") as stream:
        assert stream.read() == b"22"


def test_tree_refuses_what_is_too_large_before_it_is_unpacked(tree, monkeypatch):
    monkeypatch.setattr(files_module, "LARGEST_FILE", 10)
    files = dict(tree.read(set(FILES)))
    assert isinstance(files["ümlaut/three.txt"], Unreadable)
    assert files["a/one.txt"] == b"1"
    assert tree.read_text("a/b/two.txt") == "22"
    with pytest.raises(ValueError, match="more than 10 bytes: it is not read"):
        tree.read_text("ümlaut/three.txt")


@pytest.mark.parametrize("name", ["../out.png", "a/../../out.png", "/etc/out.png", "C:/out.png", "a\\..\\..\\out.png"])
@pytest.mark.parametrize("kind", ["zip", "tar"])
def test_tree_refuses_names_that_lead_out(tmp_path, make, kind, name):
    path = getattr(make, kind)(tmp_path / f"evil.{kind}", {"good/one.png": b"1", name: b"2"})
    with pytest.raises(ValueError, match="unsafe path"):
        open_file_tree(path).names  # noqa: B018


def test_tree_leaves_out_hidden_files_links_of_tars_and_loops_of_folders(tmp_path, make):
    files = {"a/one.txt": b"1", "__MACOSX/a/._one.txt": b"2", ".DS_Store": b"3", "a/.hidden/x": b"4"}
    assert open_file_tree(make.zip(tmp_path / "mac.zip", files)).names == ["a/one.txt"]
    folder = make.tree(tmp_path / "folder", files)
    (folder / "a" / "loop").symlink_to(folder)
    assert open_file_tree(folder).names == ["a/one.txt"]
    with tarfile.open(tmp_path / "links.tar", "w") as archive:
        link = tarfile.TarInfo("a/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("a/real.png"), io.BytesIO())
    assert open_file_tree(tmp_path / "links.tar").names == ["a/real.png"]


def test_ilsvrc_tars_are_trees_of_classes_and_not_read_twice_beside_their_folders(tmp_path, make):
    inner = make.tar(tmp_path / "in" / "n01440764.tar", {"n01440764_1.JPEG": b"fish"}).read_bytes()
    outer = open_file_tree(make.tar(tmp_path / "train.tar", {"n01440764.tar": inner}))
    folder = open_file_tree(tmp_path / "in")
    for tree in (outer, folder):
        assert dict(tree.read(set(tree.names))) == {"n01440764/n01440764_1.JPEG": b"fish"}
    make.file(tmp_path / "in" / "n01440764" / "n01440764_1.JPEG", b"fish")
    assert open_file_tree(tmp_path / "in").names == ["n01440764/n01440764_1.JPEG"]


@pytest.mark.parametrize("ending", ["zip", "tar", "tar.gz"])
def test_tree_cut_off_archive_is_named(tmp_path, make, ending):
    files = {f"a/{number}.txt": bytes(range(256)) * 40 for number in range(20)}
    kind, _, compression = ending.partition(".")
    path = tmp_path / f"half.{ending}"
    make.zip(path, files) if kind == "zip" else make.tar(path, files, f"w:{compression}")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(ValueError, match=r"half.*(damaged|truncated)"):
        list(open_file_tree(path).read(set(files)))


def test_zip_damaged_or_encrypted_member_is_unreadable_and_the_others_are_not(tmp_path):
    path = tmp_path / "bad.zip"
    with zipfile.ZipFile(path, "w") as archive:  # stored, not compressed
        archive.writestr("one.txt", b"first content")
        archive.writestr("two.txt", b"second content")
    content = bytearray(path.read_bytes())
    path.write_bytes(content.replace(b"first content", b"worst content"))
    files = dict(open_file_tree(path).read({"one.txt", "two.txt"}))
    assert isinstance(files["one.txt"], Unreadable)
    assert files["two.txt"] == b"second content"
    content[6] |= 1  # the flag in the header of the first member, and in the directory
    content[content.index(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(content)
    assert "encrypted" in dict(open_file_tree(path).read({"one.txt"}))["one.txt"].reason


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_member_that_unpacks_to_more_than_it_says_takes_little_memory(tmp_path, method):
    """A list by a method without a limit is refused."""
    path, size = tmp_path / "bomb.zip", (10_000_000).to_bytes(4, "little")
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("list.csv", bytes(10_000_000))
    tracemalloc.start()
    if method != zipfile.ZIP_DEFLATED:
        words = rf"list.csv in .* cannot be read \(packed by method {method}, where stored"
        with pytest.raises(UserError, match=words):
            open_file_tree(path).read_text("list.csv")
    path.write_bytes(path.read_bytes().replace(size, (10).to_bytes(4, "little")))
    (content,) = dict(open_file_tree(path).read({"list.csv"})).values()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(content, Unreadable)
    assert peak < 1_000_000


@given(st.integers(0, 400), st.integers(0, 255))
def test_zip_damaged_anywhere_raises_nothing_else(tmp_path_factory, place, value):
    path = tmp_path_factory.mktemp("zips") / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("one.x", b"some content" * 9)
        archive.writestr("two.x", b"other content" * 9)
    content = bytearray(path.read_bytes())
    content[place % len(content)] = value
    path.write_bytes(content)
    try:
        dict(open_file_tree(path).read({"one.x", "two.x"}))
    except ValueError as error:
        assert "damaged" in str(error) or "unsafe" in str(error)  # noqa: PT017


def test_open_tree_says_what_to_give_and_does_not_wait_for_a_pipe(tmp_path, make):
    with pytest.raises(FileNotFoundError, match="folder or archive"):
        open_file_tree(tmp_path / "nowhere")
    make.file(tmp_path / "notes.txt", b"some notes")
    if hasattr(os, "mkfifo"):  # not on every system
        os.mkfifo(tmp_path / "table.csv")
        with pytest.raises(ValueError, match="not a regular file"):
            open_file_tree(tmp_path).read_text("table.csv")
    for path in tmp_path.iterdir():
        with pytest.raises(ValueError, match="folder, zip or tar"):
            open_file_tree(path)

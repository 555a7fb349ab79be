import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapnet.data.readers import zips


def everything(path):
    with path.open("rb") as file:
        return {member.name: zips.content(file, member) for member in zips.members(path)}


@given(
    files=st.dictionaries(
        st.text("abc/é中", min_size=1, max_size=8).map(lambda name: name + ".x"), st.binary(max_size=300)
    ),
    method=st.sampled_from([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED]),
    comment=st.binary(max_size=50),
    front=st.binary(max_size=20),
)
def test_zip_members_are_those_that_the_standard_library_finds(tmp_path_factory, files, method, comment, front):
    path = tmp_path_factory.mktemp("zips") / "a.zip"
    path.write_bytes(front)
    with zipfile.ZipFile(path, "a", method) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.comment = comment
    with zipfile.ZipFile(path) as archive:
        assert everything(path) == {name: archive.read(name) for name in archive.namelist()}


def test_zip_of_64_bits_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 100)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 3)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for number in range(5):
            archive.writestr(f"{number}.x", bytes([number]) * 1000)
    assert everything(tmp_path / "a.zip") == {f"{number}.x": bytes([number]) * 1000 for number in range(5)}


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_zip_rare_packing_is_named(tmp_path, method):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", method) as archive:
        archive.writestr("one.x", b"1")
    with pytest.raises(zipfile.BadZipFile, match="method"):
        everything(tmp_path / "a.zip")


def test_zip_member_that_unpacks_to_more_than_it_says_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb.x", bytes(10_000_000))
    (member,) = zips.members(tmp_path / "a.zip")
    with (tmp_path / "a.zip").open("rb") as file, pytest.raises(zipfile.BadZipFile, match="checksum"):
        zips.content(file, member._replace(size=10))


@given(st.integers(0, 400), st.integers(0, 255))
def test_zip_damaged_anywhere_raises_nothing_else(tmp_path_factory, place, value):
    path = tmp_path_factory.mktemp("zips") / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("one.x", b"some content" * 9)
        archive.writestr("two.x", b"other content" * 9)
    content = bytearray(path.read_bytes())
    content[place % len(content)] = value
    path.write_bytes(content)
    from tapnet.data.readers.file_tree import Zip

    try:
        dict(Zip(path).read({"one.x", "two.x"}))
    except ValueError as error:
        assert "damaged" in str(error) or "unsafe" in str(error)  # noqa: PT017

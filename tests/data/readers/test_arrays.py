import contextlib
import io
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapnet.data.readers import arrays
from tapnet.data.readers.arrays import npz_rows, npz_shapes
from tapnet.errors import UserError


def npz(compressed=False, **content):
    stream = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(stream, **content)
    stream.seek(0)
    return stream


def rows(stream, member="a"):
    return np.stack(list(npz_rows(stream, member, "file.npz")))


@pytest.mark.parametrize("compressed", [False, True])
def test_npz_rows_do_not_depend_on_the_pieces_they_are_read_in(monkeypatch, compressed):
    array = np.random.default_rng(0).integers(0, 256, (50, 4, 4, 3), dtype=np.uint8)
    monkeypatch.setattr(arrays, "CHUNK_BYTES", 100)
    assert np.array_equal(rows(npz(compressed, a=array)), array)


@pytest.mark.parametrize("white", [1, 255])
def test_npz_rows_floating_point_is_scaled_by_its_white(white):
    wanted = np.arange(48, dtype=np.uint8).reshape(1, 4, 4, 3) * 5
    assert np.array_equal(rows(npz(a=wanted / 255 * white)), wanted)


def forged(header_shape, data=b"\x00" * 100):
    stream, header = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|u1", "fortran_order": False, "shape": header_shape})
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a.npy", header.getvalue() + data)
    stream.seek(0)
    return stream


@pytest.mark.parametrize(
    ("array", "why"),
    [
        (np.zeros((2, 7), dtype=np.uint8), "no square image"),
        (np.zeros((2, 4, 4, 2), dtype=np.uint8), "1 or 3"),
        (np.full((1, 2, 2, 3), -1.0), "-1"),
        (np.full((1, 2, 2, 3), np.nan), "nan"),
        (np.full((1, 2, 2, 3), 300), "300"),
        (np.zeros((2, 0, 3, 3), dtype=np.uint8), "have no pixels"),
    ],
)
def test_npz_rows_refuses_what_is_no_image(array, why):
    with pytest.raises(ValueError, match=why):
        rows(npz(a=array))


@given(place=st.integers(0, 2**16), value=st.integers(1, 255))
def test_npz_with_one_damaged_byte_gives_its_rows_or_a_sentence(place, value):
    array = np.arange(2 * 9 * 9 * 3, dtype=np.uint8).reshape(2, 9, 9, 3)
    content = bytearray(npz(compressed=True, a=array).getvalue())
    content[place % len(content)] ^= value
    with contextlib.suppress(UserError):
        members = npz_shapes(io.BytesIO(content), "file.npz")
        if "a" in members:
            assert np.array_equal(rows(io.BytesIO(content)), array)


def encrypted():
    content = bytearray(npz(a=np.zeros((2, 3, 3, 3), np.uint8)).getvalue())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.find(mark) + flags] |= 1
    return io.BytesIO(content)


@pytest.mark.parametrize(
    ("stream", "why"),
    [
        *((forged(shape), "cannot hold") for shape in ((10**12, 84, 84, 3), (101,), (99,))),
        (npz(a=np.array(["a", "b"])), "images are numbers"),
        (npz(a=np.array([{}, []], dtype=object)), r"images are numbers|cannot be read"),
        (npz(a=np.asfortranarray(np.zeros((3, 4, 4, 3)))), "column by column"),
        (io.BytesIO(b"something else"), r"file\.npz is damaged or cut off"),
        (encrypted(), "is encrypted"),
    ],
)
def test_npz_shapes_refuses_what_is_no_image(stream, why):
    with pytest.raises(UserError, match=why):
        npz_shapes(stream, "file.npz")

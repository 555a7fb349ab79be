import contextlib
import io
import os
import pickle
import struct
import tracemalloc
from collections import OrderedDict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapnet.data.readers import pickles
from tapnet.data.readers.files import open_file_tree
from tapnet.data.readers.pickles import load_pickle

PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


class Memory:
    """A file tree whose one file is in memory."""

    def __init__(self, content, log):
        self.content, self.log = content, log

    def open(self, _name):
        return io.BytesIO(self.content)


def load(content, log=lambda _: None):
    return load_pickle(Memory(content, log), "file.pkl")


def assert_refused(content, words, memory=10e6):
    """A sentence with these words, and little memory, are all that the content gets."""
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=words):
            load(content)
        assert tracemalloc.get_traced_memory()[1] < memory
    finally:
        tracemalloc.stop()


def python2_array(array):
    """The opcodes that Python 2 wrote for a uint8 array: its bytes as a plain string."""
    shape = b"(" + b"".join(b"J" + struct.pack("<i", side) for side in array.shape) + b"t"
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\x00tU\x01btR"
        b"(K\x01"
        + shape
        + b"cnumpy\ndtype\n(U\x02u1K\x00K\x01tR(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
        b"\x89T" + struct.pack("<i", array.nbytes) + array.tobytes() + b"tb"
    )


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_load_pickle_gives_arrays_of_every_protocol_and_of_python_2(protocol):
    array = np.arange(24).reshape(2, 3, 4)
    arrays = [array.astype(kind) for kind in ("uint8", "int32", "int64", "float32", "float64", "bool", ">i4")]
    arrays += [np.asfortranarray(array), array.transpose(1, 0, 2)]
    for loaded, expected in zip(load(pickle.dumps(arrays, protocol)), arrays, strict=True):
        np.testing.assert_array_equal(loaded, expected)
    array = array.astype(np.uint8)
    python2 = load(b"\x80\x02}U\x0aimage_data" + python2_array(array) + b"s.")
    assert np.array_equal(python2["image_data"], array)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ),
    st.sampled_from(PROTOCOLS),
)
def test_load_pickle_plain_values_come_back(value, protocol):
    assert load(pickle.dumps(value, protocol)) == value


def test_load_pickle_takes_ordered_dictionaries_scalars_and_arrays_of_arrays():
    pair = np.empty(2, dtype=object)
    pair[:] = [np.arange(3, dtype=np.uint8), np.arange(5, dtype=np.uint8)]
    content = load(pickle.dumps(OrderedDict(a=[np.int64(7), np.float32(0.5)], b=pair), 2))
    assert content["a"] == [7, 0.5]
    assert [len(array) for array in content["b"]] == [3, 5]


class Evil:
    def __init__(self, call, *arguments):
        self.call, self.arguments = call, arguments

    def __reduce__(self):
        return self.call, self.arguments


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_load_pickle_runs_nothing_of_a_malicious_file(tmp_path, protocol):
    trap = tmp_path / "sprung"
    with pytest.raises(ValueError, match=r"refused: it asks for \w+\.system.*Nothing of it was run"):
        load(pickle.dumps({"image_data": Evil(os.system, f"touch {trap}")}, protocol))
    assert not trap.exists()


def nested(depth=60):
    value = (1,)
    for _ in range(depth):
        value = (value, value)
    return pickle.dumps(value, protocol=2)[2:-1]


def copies(count):
    """A pickle of one megabyte of text that asks for so many copies of it as bytes."""
    words = b"X" + struct.pack("<I", 1_000_000) + b"a" * 1_000_000
    content = b"c_codecs\nencode\nq\x000X\x06\x00\x00\x00latin1q\x010" + words + b"q\x020"
    return b"\x80\x02](" + content + b"h\x00h\x02h\x01\x86R" * count + b"e."


U64 = struct.Struct("<Q").pack
LARGE = 1_500_000_000
HONEST = b"\x80\x02" + python2_array(np.zeros((2, 3), dtype=np.uint8)) + b"."
SIDE = b"J" + struct.pack("<i", 2)
LARGE_SIDE = b"J" + struct.pack("<i", 100_000_000)
FUNCTIONS = (eval, exec, getattr, open, __import__, np.load, np.fromfile, pickle.loads, bytearray)
HOSTILE = {
    **{f"call of {call.__name__}": (pickle.dumps([Evil(call, 10**12)]), r"file\.pkl is") for call in FUNCTIONS},
    "array larger than the file": (pickle.dumps(Evil(np.ndarray, (10**9,))), "refused"),
    "array not of its bytes": (
        pickle.dumps(Evil(np._core.multiarray._reconstruct, np.ndarray, (10**9,), b"b")),
        "not built from its own bytes",
    ),
    "forged shape": (HONEST.replace(SIDE, LARGE_SIDE, 1), "cannot hold it"),
    # a list times a number is a list of that many elements
    "list in a shape": (HONEST.replace(SIDE + b"J" + struct.pack("<i", 3), LARGE_SIDE + b"]K\x01a"), "tuple of sizes"),
    "long type": (HONEST.replace(b"U\x02u1", b"U\xf0" + b"i4, " * 60), "only numbers and text are taken"),
    "bytes of a length": (pickle.dumps(Evil(bytes, 100_000_000)), "bytes made from something else"),
    "bytes of an array": (pickle.dumps(Evil(bytes, np.array([100_000_000]))), "bytes made from something else"),
    "change of the reader": (b"\x80\x02c_codecs\nencode\n}U\x05_makeK\x01sb.", "a change of the reader itself"),
    "length of a bytearray": (b"\x80\x05\x96" + U64(LARGE) + b".", "not a complete pickle"),
    "length of bytes": (b"\x80\x04\x8e" + U64(LARGE) + b".", "not a complete pickle"),
    "length of text": (b"\x80\x04\x8d" + U64(LARGE) + b".", "not a complete pickle"),
    "length of a frame": (b"\x80\x04\x95" + U64(LARGE) + b".", "not a complete pickle"),
    "length of a number": (b"\x80\x02\x8b" + struct.pack("<i", LARGE) + b".", "not a complete pickle"),
    "cut off": (pickle.dumps(np.arange(1000))[:500], "not a complete pickle"),
    # keys that would take forever to hash
    **{
        f"nested key by {name}": (b"\x80\x02" + opcodes % nested() + b".", "key that is neither text nor a number")
        for name, opcodes in {"SETITEM": b"}%sK\x01s", "SETITEMS": b"}(%sK\x01u", "DICT": b"(%sK\x01d"}.items()
    },
    # multiples of 2**61 - 1 have the hash 0: a dictionary of n of them takes n² steps
    "equal hashes": (pickle.dumps({k * (2**61 - 1): None for k in range(1, 50)}), "at most 60 bits"),
    **{
        f"set or object {number}": (b"\x80\x04" + opcodes % nested() + b".", "asks for a set or an object")
        for number, opcodes in enumerate(
            [b"\x8f(%s\x90", b"(%s\x91", b"c_codecs\nencode\n%s\x81", b"(c_codecs\nencode\n%so"]
        )
    },
    "many copies of one text": (copies(200), "more copies of its content"),
}


@pytest.mark.parametrize(("content", "words"), HOSTILE.values(), ids=HOSTILE)
def test_load_pickle_refuses_hostile_files_in_one_sentence_and_little_memory(content, words):
    assert content != HONEST
    assert_refused(content, words)


def test_load_pickle_compares_lengths_with_what_is_left_of_the_file():
    """A file of 20 MB that asks for 20 MB a second time."""
    content = b"\x80\x05\x96" + U64(20_000_000) + bytes(20_000_000) + b"\x96" + U64(20_000_000) + b"."
    assert_refused(content, "not a complete pickle", memory=30e6)


def test_load_pickle_shared_lists_do_not_explode_and_one_that_holds_itself_is_refused():
    value = []
    for _ in range(60):
        value = [value, value]
    assert len(load(pickle.dumps(value))) == 2
    value = []
    value.append(value)
    with pytest.raises(ValueError, match="not a complete pickle"):
        load(pickle.dumps(value))


@given(st.binary(max_size=60))
def test_load_pickle_rubbish_raises_nothing_but_a_value_error(content):
    with contextlib.suppress(ValueError):
        load(b"\x80\x02" + content)


def test_load_pickle_without_memory_is_refused_before_reading(monkeypatch):
    monkeypatch.setattr(pickles, "available_memory", lambda: 100e6)
    with pytest.raises(ValueError, match=r"needs up to 0\.5 GB of memory at once, and 0\.1 GB are free"):
        load(b"not even a pickle")


@pytest.mark.parametrize("protocol", ["python 2", 2, 4])
def test_load_pickle_holds_an_array_once_while_reading_it(make, tmp_path, protocol):
    array = np.resize(np.arange(256, dtype=np.uint8), (30, 1000, 1000))
    content = b"\x80\x02" + python2_array(array) + b"." if protocol == "python 2" else pickle.dumps(array, protocol)
    most = make.file(tmp_path / "large.pkl", content).stat().st_size + 0.75 * array.nbytes
    del content
    tracemalloc.start()
    loaded = load_pickle(open_file_tree(tmp_path), "large.pkl")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(loaded, array)
    assert peak < most

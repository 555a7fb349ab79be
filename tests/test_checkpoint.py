import contextlib
import json
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tapnet
from tapnet.checkpoint import Checkpoint, Header, read_checkpoint
from tapnet.paths import BEST, bundled_checkpoints, find_checkpoint, write_atomically
from tapnet.recipe import load_recipe

RECIPE = load_recipe("quickdraw", ["backbone.options={widths: [16, 16, 16, 16]}", "training.way=8", "validation.way=5"])


def write(path):
    Checkpoint(Header(RECIPE, (1, 8, 8), episode=3), RECIPE.build((1, 8, 8)).state_dict()).write(path)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_checkpoint_gives_back_the_same_method(tmp_path, layout):
    method = RECIPE.build((1, 8, 8)).to(memory_format=layout)
    Checkpoint(Header(RECIPE, (1, 8, 8), episode=3), method.state_dict()).write(tmp_path / "m")
    loaded = tapnet.load(tmp_path / "m")
    assert not loaded.training
    assert loaded.state_dict().keys() == method.state_dict().keys()
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, method.state_dict()[name])


def test_a_checkpoint_is_the_same_byte_for_byte(tmp_path):
    method = RECIPE.build((1, 8, 8))
    for name in ("a", "b"):
        Checkpoint(Header(RECIPE, (1, 8, 8), episode=3), method.state_dict()).write(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_failed_write_leaves_the_older_file(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    write(path)
    before = path.read_bytes()

    def full_disk(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no checkpoint .*nothing"):
        tapnet.load(tmp_path / "nothing.safetensors")


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    save_file({"x": torch.zeros(2)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match="not a tapnet checkpoint"):
        tapnet.load(tmp_path / "x.safetensors")


def test_weights_that_do_not_fit_the_recipe_are_refused(tmp_path):
    path = tmp_path / "m.safetensors"
    write(path)
    header = json.dumps(header_of(path))
    save_file(load_file(path) | {"references": torch.zeros(9, 16)}, path, {"tapnet": header})
    with pytest.raises(ValueError, match="do not fit the recipe of the checkpoint: references differ"):
        tapnet.load(path)


def test_a_recipe_of_monstrous_size_takes_no_memory(tmp_path):
    path = tmp_path / "m.safetensors"
    write(path)
    header = header_of(path)
    header["recipe"]["backbone"]["options"]["widths"] = [10**6] * 4
    save_file(load_file(path), path, {"tapnet": json.dumps(header)})
    with pytest.raises(ValueError, match="do not fit the recipe"):
        tapnet.load(path)


@given(st.binary(max_size=300))
def test_bytes_that_are_no_checkpoint_end_in_a_sentence(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"m\.safetensors"):
        read_checkpoint(path)


@given(cut=st.floats(0, 0.999), place=st.floats(0, 0.999), byte=st.integers(0, 255))
def test_a_damaged_checkpoint_ends_in_a_sentence_or_in_weights(tmp_path_factory, cut, place, byte):
    path = tmp_path_factory.mktemp("fuzz") / "m.safetensors"
    write(path)
    content = bytearray(path.read_bytes())
    content[int(place * len(content))] = byte
    path.write_bytes(content)
    with contextlib.suppress(ValueError):  # the one exception that a reader of foreign files has to expect
        read_checkpoint(path).method()
    path.write_bytes(content[: int(cut * len(content))])
    with pytest.raises(ValueError, match=r"m\.safetensors"):
        read_checkpoint(path)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=5), lambda x: st.lists(x) | st.dictionaries(st.text(max_size=5), x)
    )
)
def test_a_hostile_header_ends_in_a_sentence(tmp_path_factory, value):
    path = tmp_path_factory.mktemp("fuzz") / "m.safetensors"
    save_file({"x": torch.zeros(2)}, path, {"tapnet": json.dumps(value)})
    with pytest.raises(ValueError, match=r"m\.safetensors"):
        read_checkpoint(path)


def test_a_path_comes_before_a_bundled_name_and_a_folder_of_something_else_after_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "drawings").mkdir()
    assert find_checkpoint("drawings") == bundled_checkpoints()["drawings"]
    write(tmp_path / "drawings" / BEST)
    assert find_checkpoint("drawings") == Path("drawings") / BEST


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path):
    with pytest.raises(IsADirectoryError) as fault:
        write_atomically(tmp_path, b"")
    assert fault.value.filename == str(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_followed_not_replaced(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "real.task").write_bytes(b"old")
    (tmp_path / "link.task").symlink_to("there/real.task")
    write_atomically(tmp_path / "link.task", b"new")
    assert (tmp_path / "link.task").is_symlink()
    assert (tmp_path / "there" / "real.task").read_bytes() == b"new"


def header_of(path):
    """The header of a file, less the digest: who means harm leaves it out."""
    with safe_open(path, framework="pt") as file:
        return {key: value for key, value in json.loads(file.metadata()["tapnet"]).items() if key != "digest"}

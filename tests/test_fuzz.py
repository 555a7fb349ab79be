"""Files from strangers: whatever is in them, loading ends in the object or in one clear error."""

import contextlib
import io
import json
import struct
from dataclasses import asdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from tapnet.checkpoint import Checkpoint, Header, read_checkpoint, read_header
from tapnet.cli import main
from tapnet.recipe import recipe_from
from tapnet.training.loader import episode_loss
from tapnet.training.run_folder import read_curve, summarize_run

RECIPE = recipe_from(
    {
        "name": "small",
        "data": {"name": "quickdraw"},
        "backbone": {"name": "conv4", "options": {"widths": [16, 16, 16, 16]}},
        "method": {"name": "tapnet", "options": {"num_references": 8}},
        "training": {"way": 8, "shot": 1, "query": 1, "episodes": 1},
    },
    "test",
)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@pytest.fixture(scope="module")
def header():
    """The header of a good checkpoint as plain values, and its weights."""
    return asdict(Header(RECIPE, (1, 8, 8), episode=3)), RECIPE.build((1, 8, 8)).state_dict()


def paths(value, here=()):
    """Every place in nested dictionaries."""
    for key, inner in value.items():
        yield (*here, key)
        if isinstance(inner, dict):
            yield from paths(inner, (*here, key))


@given(data=st.data())
def test_a_header_with_one_hostile_value_ends_in_a_method_or_a_sentence(tmp_path_factory, header, data):
    good, weights = header
    bad = json.loads(json.dumps(good))
    *parents, leaf = data.draw(st.sampled_from(sorted(paths(bad))))
    place = bad
    for parent in parents:
        place = place[parent]
    place[leaf] = data.draw(values)
    path = tmp_path_factory.mktemp("fuzz") / "m.safetensors"
    save_file(weights, path, {"tapnet": json.dumps(bad)})
    with contextlib.suppress(ValueError):
        read_checkpoint(path).method()
    with contextlib.suppress(ValueError):
        read_header(path)


@given(
    names=st.dictionaries(st.text(max_size=30), st.sampled_from([torch.float32, torch.int8, torch.bool]), max_size=5)
)
def test_hostile_tensor_names_and_types_end_in_a_sentence(tmp_path_factory, header, names):
    good, _ = header
    path = tmp_path_factory.mktemp("fuzz") / "m.safetensors"
    save_file({name: torch.zeros(2, dtype=dtype) for name, dtype in names.items()}, path, {"tapnet": json.dumps(good)})
    with pytest.raises(ValueError, match="do not fit the recipe"):
        read_checkpoint(path).method()


def test_a_header_nested_beyond_reason_ends_in_a_sentence(tmp_path):
    path = tmp_path / "m.safetensors"
    save_file({"x": torch.zeros(2)}, path, {"tapnet": "[" * 100_000 + "]" * 100_000})
    with pytest.raises(ValueError, match="damaged header"):
        read_checkpoint(path)


TABLE = json.dumps({"x": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()


@pytest.mark.parametrize(
    "content",
    [
        *(struct.pack("<Q", length) + b"{}" for length in (0, 8, 2**32, 2**63 - 1, 2**64 - 1)),
        struct.pack("<Q", len(TABLE)) + TABLE,
    ],
)
def test_lengths_and_tensors_that_promise_more_than_the_file_holds_take_no_memory(tmp_path, content):
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    "options", [{"num_references": 2**62}, {"num_references": 10**30}, {"num_references": -1}, {"num_references": 1.5}]
)
def test_a_method_of_impossible_size_ends_in_a_sentence(header, options):
    good, weights = header
    training = good["recipe"]["training"] | {"way": options["num_references"]}
    values = good["recipe"] | {"method": {"name": "tapnet", "options": options}, "training": training}
    with pytest.raises(ValueError, match=r"TapNet needs|cannot be built|do not fit|training\.way"):
        Checkpoint(Header(recipe_from(values, "test"), (1, 8, 8), episode=3), weights).method()


@given(content=st.binary(max_size=200))
def test_a_curve_of_any_bytes_ends_in_points_or_a_sentence(tmp_path_factory, content):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "curve.jsonl").write_bytes(content)
    with contextlib.suppress(ValueError):
        read_curve(folder)


@given(facts=values, results=values)
def test_a_run_folder_of_any_content_can_be_listed(tmp_path_factory, facts, results):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "run.json").write_text(json.dumps(facts))
    (folder / "evaluation.json").write_text(json.dumps({"results": results}))
    (folder / "last.safetensors").write_bytes(b"")
    assert summarize_run(folder).state == "unreadable"
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["runs", str(folder)]) == 0


@given(content=st.binary(max_size=200))
def test_a_kept_episode_of_any_bytes_ends_in_a_sentence(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "episode-0.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not a saved episode"):
        episode_loss(path)

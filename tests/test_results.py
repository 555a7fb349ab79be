import json

import pytest

from tapnet.checkpoint import Header
from tapnet.evaluation import Evaluator
from tapnet.recipe import load_recipe
from tapnet.results import read_results, record


def test_a_recorded_result_is_read_back(tmp_path, blobs, small_tapnet):
    header = Header(load_recipe("quickdraw"), (1, 8, 8), episode=3)
    result = Evaluator(small_tapnet, blobs).evaluate(5, 1, 3, episodes=4)
    path = record(tmp_path, header, result)
    assert path.name == "quickdraw-seed0-blobs-test-5way-1shot.json"
    assert read_results(tmp_path)[0]["evaluation"] == result.as_dict()


def test_a_recorded_result_tells_how_it_was_made(tmp_path, blobs, small_tapnet):
    header = Header(load_recipe("quickdraw"), (1, 8, 8), episode=3, hardware={"device": "cpu"})
    record(tmp_path, header, Evaluator(small_tapnet, blobs).evaluate(5, 1, 3, episodes=4))
    kept = read_results(tmp_path)[0]
    assert kept["command"].startswith("tapnet")
    assert kept["recipe"]["seed"] == 0
    assert kept["trained"] == {"episodes": 3, "hardware": {"device": "cpu"}, "data": {}}


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"recipe": {}})])
def test_a_file_that_is_no_result_is_named(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=r"x\.json is not a kept result"):
        read_results(tmp_path)

import json
import math

import pytest

from tapnet.checkpoint import Header, lineage_from
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import UserError
from tapnet.evaluation.evaluator import Evaluator
from tapnet.paper.results import ablation_result, read_results, record, record_ablation
from tapnet.recipe import load_recipe


def test_a_recorded_result_is_read_back(tmp_path, blobs, small_tapnet):
    header = Header(load_recipe("quickdraw"), (1, 8, 8), episode=3)
    result = Evaluator(small_tapnet, blobs).evaluate(EpisodeSpec(5, 1, 3, 4))
    path = record(tmp_path, header, result)
    assert path.name == "quickdraw-seed0-blobs-test10-5way-1shot-4.json"
    assert read_results(tmp_path)[0]["evaluation"] == result.as_dict() | {
        "allow_overlap": False,
        "interval": "student",
    }


def test_a_recorded_result_tells_how_it_was_made(tmp_path, blobs, small_tapnet):
    header = Header(load_recipe("quickdraw"), (1, 8, 8), episode=3, hardware={"device": "cpu"})
    record(tmp_path, header, Evaluator(small_tapnet, blobs).evaluate(EpisodeSpec(5, 1, 3, 4)), state="finished")
    kept = read_results(tmp_path)[0]
    assert kept["command"].startswith("tapnet")
    assert kept["recipe"]["seed"] == 0
    assert lineage_from(kept["trained"].pop("lineage")) == header.lineage
    assert kept["trained"] == {
        "episodes": 3,
        "state": "finished",
        "seconds": None,
        "hardware": {"device": "cpu"},
        "data": {},
        "version": header.version,
    }


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"recipe": {}})])
def test_a_file_that_is_no_result_is_named(tmp_path, text):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(ValueError, match=r"x\.json is not a recorded result"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("accuracy", "high"), ("accuracy", math.nan), ("ci95", None), ("way", [5])]
)
def test_a_result_whose_numbers_are_none_is_named(tmp_path, blobs, small_tapnet, name, value):
    header = Header(load_recipe("quickdraw"), (1, 8, 8), episode=3)
    path = record(tmp_path, header, Evaluator(small_tapnet, blobs).evaluate(EpisodeSpec(5, 1, 3, 4), bootstrap=False))
    content = json.loads(path.read_text())
    content["evaluation"][name] = value
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match="is not a recorded result"):
        read_results(tmp_path)


def test_results_of_two_recipes_of_one_name_are_both_kept(tmp_path, blobs, small_tapnet):
    result = Evaluator(small_tapnet, blobs).evaluate(EpisodeSpec(5, 1, 3, 4))
    for episodes in (3, 4, 4):
        recipe = load_recipe("quickdraw", [f"training.episodes={episodes}"])
        record(tmp_path, Header(recipe, (1, 8, 8), episode=3), result)
    kept = read_results(tmp_path)
    assert sorted(each["recipe"]["training"]["episodes"] for each in kept) == [3, 4]


def test_results_of_two_tasks_of_one_name_are_both_kept(tmp_path, blobs, small_tapnet):
    header, evaluator = Header(load_recipe("quickdraw"), (1, 8, 8), 3), Evaluator(small_tapnet, blobs)
    for query, seed in ((3, 0), (2, 0), (3, 1), (2, 0)):
        record(tmp_path, header, evaluator.evaluate(EpisodeSpec(5, 1, query, 4, seed)))
    kept = [(result["evaluation"]["query"], result["evaluation"]["seed"]) for result in read_results(tmp_path)]
    assert sorted(kept) == [(2, 0), (3, 0), (3, 1)]


def test_results_of_one_recipe_are_one_wherever_its_data_lies(tmp_path, blobs, small_tapnet):
    result = Evaluator(small_tapnet, blobs).evaluate(EpisodeSpec(5, 1, 3, 4))
    for root in ("here", "there"):
        record(tmp_path, Header(load_recipe("quickdraw", [f"data.root={root}"]), (1, 8, 8), episode=3), result)
    assert len(read_results(tmp_path)) == 1


def test_a_result_from_before_a_key_of_the_recipe_is_still_one_of_that_recipe(tmp_path, blobs, small_tapnet):
    header, result = (
        Header(load_recipe("quickdraw"), (1, 8, 8), 3),
        Evaluator(small_tapnet, blobs).evaluate(EpisodeSpec(5, 1, 3, 4)),
    )
    path = record(tmp_path, header, result)
    older = json.loads(path.read_text())
    del older["recipe"]["training"]["cycles"]
    path.write_text(json.dumps(older))
    assert read_results(tmp_path)[0]["recipe"] == header.recipe.as_dict()
    assert record(tmp_path, header, result) == path


def test_an_ablation_is_kept_in_a_folder_of_its_own(tmp_path, blobs, small_tapnet):
    header, evaluator = Header(load_recipe("quickdraw"), (1, 8, 8), episode=3), Evaluator(small_tapnet, blobs)
    record(tmp_path, header, evaluator.evaluate(EpisodeSpec(5, 1, 3, 4)))
    task = {"way": 5, "shot": 1, "query": 3, "episodes": 4, "seed": 0}
    for length, words in ((None, ""), (7, "-trained7")):
        result = ablation_result("gradient", header, evaluator, task, [{"variant": "x", "training_episodes": length}])
        path = record_ablation(tmp_path, result)
        expected = f"gradient-quickdraw-seed0{words}-blobs-test10-5way-1shot-4.json"
        assert path == tmp_path / "ablations" / expected
        kept = json.loads(path.read_text())
        assert kept == json.loads(json.dumps(result))
        assert kept["kind"] == "ablation"
        assert {"command", "recipe", "trained", "version", "hardware"} <= kept.keys()
    assert len(read_results(tmp_path)) == 1

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tapnet.checkpoint import Header, lineage_from
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import UserError
from tapnet.evaluation.evaluator import Evaluator
from tapnet.paper.ablations import AblationRow
from tapnet.paper.results import ablation_result, read_ablation, read_ablations, read_results, record, record_ablation
from tapnet.recipe import load_recipe

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def evaluator(small_tapnet, blobs):
    return Evaluator(small_tapnet, blobs)


@pytest.fixture
def evaluation(evaluator):
    return evaluator.evaluate(EpisodeSpec(5, 1, 3, 4), bootstrap=False)


def header(*changes, **values):
    return Header(load_recipe("quickdraw", list(changes)), (1, 8, 8), episode=3, **values)


def test_recorded_result_is_read_back_with_how_it_was_made(tmp_path, evaluation):
    path = record(tmp_path, header(hardware={"device": "cpu"}), evaluation, state="finished")
    assert path == tmp_path / "quickdraw" / "quickdraw.json"
    (result,) = read_results(tmp_path)
    assert result["evaluation"] == evaluation.as_dict() | {"allow_overlap": False}
    assert result["command"].startswith("tapnet")
    assert result["recipe"] == header().recipe.as_dict()
    assert lineage_from(result["trained"].pop("lineage")) == header().lineage
    assert result["trained"] == {
        "episodes": 3,
        "state": "finished",
        "seconds": None,
        "hardware": {"device": "cpu"},
        "data": {},
        "version": header().version,
    }


def test_results_of_a_recipe_are_in_one_file_and_one_of_the_same_task_is_replaced(tmp_path, evaluator, evaluation):
    variants = [header(), header("seed=1"), header("training.episodes=4"), header("data.root=there")]
    paths = {record(tmp_path, variant, evaluation) for variant in variants}  # the last is the first, elsewhere
    for query, seed in ((3, 1), (2, 0), (2, 0)):
        paths.add(record(tmp_path, header(), evaluator.evaluate(EpisodeSpec(5, 1, query, 4, seed), bootstrap=False)))
    assert len(paths) == 1
    seeds_and_lengths = [
        (result["recipe"]["seed"], result["recipe"]["training"]["episodes"]) for result in read_results(tmp_path)
    ]
    assert sorted(seeds_and_lengths) == sorted([(0, 1200)] * 3 + [(1, 1200), (0, 4)])
    record(tmp_path, replace(header(), episode=5), evaluation)  # trained again
    tasks = [(result["trained"]["episodes"], result["evaluation"]["query"]) for result in read_results(tmp_path)]
    assert tasks.count((5, 3)) == 1
    assert len(tasks) == 5


def test_training_that_is_known_later_is_kept(tmp_path, evaluator, evaluation):
    record(tmp_path, header(), evaluation)
    longer = evaluator.evaluate(EpisodeSpec(5, 1, 3, 5), bootstrap=False)
    record(tmp_path, header(), longer, state="finished", seconds=60.0)
    record(tmp_path, header(), evaluation)
    assert [result["trained"]["seconds"] for result in read_results(tmp_path)] == [60.0, 60.0]


def test_recorded_ablation_is_beside_the_evaluations_of_its_recipe(tmp_path, evaluator, evaluation):
    path, task = record(tmp_path, header(), evaluation), asdict(EpisodeSpec(5, 1, 3, 4))
    rows = [asdict(AblationRow("x", 0.5, 0.1))]
    for name in ("gradient", "dimension", "gradient"):
        result = ablation_result(name, header(), evaluator, task, rows)
        assert record_ablation(tmp_path, result) == path
    assert [ablation["name"] for ablation in read_ablations(tmp_path)] == ["dimension", "gradient"]
    assert read_ablation(path, "gradient") == json.loads(json.dumps(result))
    assert len(read_results(tmp_path)) == 1
    with pytest.raises(UserError, match=r"no ablation ways: add one by `tapnet ablate ways … --record results`"):
        read_ablation(path, "ways")


@pytest.mark.parametrize("text", ["{", "[]", json.dumps({"format": 1, "runs": [{"recipe": {}}]})])
def test_file_that_has_no_results_is_named(tmp_path, text):
    (tmp_path / "any").mkdir()
    (tmp_path / "any" / "x.json").write_text(text)
    with pytest.raises(UserError, match=r"x\.json is not a file of recorded results"):
        read_results(tmp_path)


def test_file_of_another_format_is_refused(tmp_path, evaluation):
    path = record(tmp_path, header(), evaluation)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 9}))
    with pytest.raises(UserError, match="its format is 9, this version of tapnet has 1"):
        read_results(tmp_path)

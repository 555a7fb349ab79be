"""Recorded results, and the pages that are made from them."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tapnet.checkpoint import Ancestor, Header, Lineage, lineage_from, read_checkpoint
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import UserError
from tapnet.evaluation.evaluator import Evaluator
from tapnet.paper.ablations import Row
from tapnet.paper.published import CELLS
from tapnet.paper.report import details, report
from tapnet.paper.results import (
    ablation_result,
    read_ablation,
    read_ablations,
    read_results,
    record,
    record_ablation,
)
from tapnet.paper.tables import matching_results
from tapnet.recipe import Data, load_recipe, recipe_from

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def recorded():
    return read_results(ROOT / "results")


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
    found = [(result["recipe"]["seed"], result["recipe"]["training"]["episodes"]) for result in read_results(tmp_path)]
    assert sorted(found) == sorted([(0, 1200)] * 3 + [(1, 1200), (0, 4)])
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
    rows = [asdict(Row("x", 0.5, 0.1))]
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


@pytest.mark.parametrize(
    ("change", "words"),
    [({"format": 9}, "its format is 9, this version of tapnet has 1")]
    + [({name: value}, "expected a number for") for name, value in (("accuracy", math.nan), ("ci95", True))]
    + [({name: value}, "not a file of recorded results") for name, value in (("accuracy", "high"), ("way", [5]))],
)
def test_file_with_another_format_or_no_numbers_is_refused(tmp_path, evaluation, change, words):
    path = record(tmp_path, header(), evaluation)
    content = json.loads(path.read_text())
    (content if "format" in change else content["runs"][0]["evaluations"][0]["evaluation"]).update(change)
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=words):
        read_results(tmp_path)


def test_pages_are_what_the_results_give():
    assert (ROOT / "RESULTS.md").read_text(encoding="utf-8") == report(ROOT / "results"), "run `make results`"
    assert (ROOT / "results" / "README.md").read_text(encoding="utf-8") == details(ROOT / "results")


def test_our_first_row_of_a_cell_was_best_on_validation_classes(recorded):
    for cell in CELLS:
        for recipe in list(cell.ours)[:1]:
            ours, *others = (
                result["validation"]["accuracy"]
                for name in (recipe, *(other for other in {result["recipe"]["name"] for result in recorded}))
                for result in matching_results(name, cell.task, recorded)
                if result["recipe"]["method"]["name"] == "tapnet"
                and result["recipe"]["data"]["train_split"] == "train"
                and result["validation"]["shot"] == result["recipe"]["training"]["shot"]
                and (cell.task.dataset == "omniglot" or result["validation"]["shot"] == cell.task.shot)
            )
            assert ours >= max(others)


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*/*.safetensors")), ids=lambda path: path.stem)
def test_kept_network_is_the_one_of_its_results(path, recorded):
    kept = read_checkpoint(path).header
    recipe = recipe_from(kept.recipe.as_dict(), path.name).as_dict()
    trained = [result["trained"] for result in recorded if result["recipe"] == recipe]
    networks = [(run["episodes"], run["data"], lineage_from(run["lineage"])) for run in trained]
    assert (kept.episode, kept.data, kept.lineage) in networks


@pytest.fixture
def results(tmp_path):
    """A folder with one evaluation and one ablation of the paper's recipe."""
    recipe = load_recipe("omniglot-1shot").as_dict()
    task = {"way": 20, "shot": 1, "query": 5, "episodes": 10_000, "dataset": "omniglot", "split": "test"}
    accuracy = {"accuracy": 0.97123, "ci95": 0.0012, "ci95_bootstrap": 0.005, "classes": 423}
    rows = [asdict(Row("closest", 0.9, 0.01)), asdict(Row("farthest", 0.8877, 0.01, -0.0123, 0.001))]
    run = {
        "recipe": recipe,
        "trained": {"episodes": 500, "hardware": {"device_name": "some CPU"}, "lineage": {}},
        "validation": None,
        "evaluations": [{"command": "tapnet something", "evaluation": task | accuracy}],
        "ablations": [{"command": "tapnet ablate", "name": "selection", "task": task, "rows": rows}],
    }
    write(tmp_path, [run])
    return tmp_path


def write(folder, runs):
    (folder / "omniglot").mkdir(exist_ok=True)
    (folder / "omniglot" / "omniglot-1shot.json").write_text(json.dumps({"format": 1, "runs": runs}))


def read(folder):
    return json.loads((folder / "omniglot" / "omniglot-1shot.json").read_text())["runs"]


def test_first_table_has_every_cell_of_the_paper_with_ours_and_the_difference(results):
    first_screen = report(results).split("\n## ")[0].splitlines()
    rows = [line for line in first_screen if line.startswith("| ")][2:]
    assert len(rows) == 14
    assert rows[0] == (
        "| Omniglot, 423 characters as drawn | ResNet-12 | 20-way 1-shot | 98.07 | 97.12 ± 0.12 | ± 0.50 | -0.95 | 500 "
        "| — | `omniglot-1shot` |"
    )
    assert sum("| not run |" in row for row in rows) == 13


def test_other_networks_have_rows_of_their_own_and_say_what_they_are():
    rows = [line for line in report(ROOT / "results").splitlines() if "| Omniglot, 423 characters" in line]
    for row, words in zip(rows, ("ensemble of four", "single network", "four views of each image"), strict=False):
        assert words in row


def test_commands_of_what_was_not_run_end_the_page(results):
    commands = report(results).split("## Not run")[1]
    assert "tapnet train omniglot-1shot && tapnet evaluate runs/omniglot-1shot --rotations 4 --way 20" in commands
    assert "tapnet train mini-imagenet-5shot-conv4 && " in commands


def test_seeds_of_a_recipe_share_a_row_with_their_mean_and_range(results):
    first, second = read(results), read(results)
    second[0]["recipe"]["seed"], second[0]["evaluations"][0]["evaluation"]["accuracy"] = 1, 0.98123
    write(results, [*first, *second])
    assert "| 98.07 | 97.62 (2 seeds: 97.12 to 98.12) | ± 0.50 | -0.45 |" in report(results)
    assert "| `omniglot-1shot`, seed 1 | omniglot, 423 test classes |" in details(results)


def test_training_counts_the_networks_that_one_learned_from_once(results):
    teachers = [("distilled", "teacher", 1000, digest) for digest in ("4567", "89ab")]
    networks = [*teachers, ("initialized", "teacher", 1000, "4567"), ("earlier", "first", 300, "0123")]
    for seconds, cells in ((None, "| 2,800 | — |"), (7200.0, "| 2,800 | 8.0 |")):
        ancestors = [Ancestor(*network, Data("omniglot"), "val", seconds=seconds) for network in networks]
        (run,) = read(results)
        run["trained"] |= {"seconds": 7200.0, "lineage": asdict(Lineage(tuple(ancestors)))}
        write(results, [run])
        assert cells in report(results)


def test_details_have_evaluations_ablations_tables_and_commands(results):
    (results / "omniglot" / "omniglot-1shot.safetensors").touch()
    page = details(results)
    assert (
        "| [`omniglot-1shot`](omniglot/omniglot-1shot.safetensors) | omniglot, 423 test classes | 20-way 1-shot, "
        "10,000 episodes of 5 queries | 97.12 | ± 0.12 | ± 0.50 | 500 of 100,000 training episodes |"
    ) in page
    assert "Trained on some CPU. Made by:\n\n```\ntapnet something\n```" in page
    assert "### selection: `omniglot-1shot`, 20-way 1-shot" in page
    assert "| farthest | 88.77 | ± 1.00 | -1.23 | ± 0.10 |" in page
    assert "| TapNet, ours | 97.12 ± 0.12 | not run | not run | not run |" in page

"""RESULTS.md and results/README.md say what the recorded results say."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from write_results import details, report

from tapnet.checkpoint import Ancestor, Lineage, lineage_from, read_checkpoint
from tapnet.paper.ablations import AblationRow
from tapnet.paper.published import CELLS
from tapnet.paper.results import read_results
from tapnet.paper.tables import matching_results
from tapnet.recipe import Data, load_recipe, recipe_from

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def recorded():
    return read_results(ROOT / "results")


def test_pages_are_what_the_results_give():
    assert (ROOT / "RESULTS.md").read_text(encoding="utf-8") == report(ROOT / "results"), "run `make results`"
    assert (ROOT / "results" / "README.md").read_text(encoding="utf-8") == details(ROOT / "results")


def test_our_first_row_of_a_cell_was_best_on_validation_classes(recorded):
    names = {result["recipe"]["name"] for result in recorded if result["recipe"]["method"]["name"] == "tapnet"}
    for cell in (cell for cell in CELLS if cell.ours):
        accuracies = {
            name: result["validation"]["accuracy"]
            for name in names
            for result in matching_results(name, cell.task, recorded)
            if result["recipe"]["data"]["train_split"] == "train"
            and (cell.task.dataset == "omniglot" or result["validation"]["shot"] == cell.task.shot)
        }
        assert max(accuracies, key=accuracies.get) == next(iter(cell.ours))


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
    rows = [asdict(AblationRow("closest", 0.9, 0.01)), asdict(AblationRow("farthest", 0.8877, 0.01, -0.0123, 0.001))]
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

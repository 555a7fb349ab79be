import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tapnet.checkpoint import Ancestor, Lineage, lineage_from, read_checkpoint
from tapnet.paper.report import report
from tapnet.paper.results import read_results
from tapnet.recipe import Data, load_recipe, recipe_from

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def results(tmp_path):
    """A folder with one evaluation and one ablation."""
    recipe = load_recipe("omniglot-1shot").as_dict()
    origin = {
        "command": "tapnet something",
        "recipe": recipe,
        "trained": {"episodes": 500, "hardware": {"device_name": "some CPU"}, "lineage": {}},
    }
    task = {"way": 20, "shot": 1, "query": 5, "episodes": 10_000, "dataset": "omniglot", "split": "test"}
    accuracy = {"accuracy": 0.97123, "ci95": 0.0012, "ci95_bootstrap": None, "classes": 423}
    row = {"variant": "closest", "accuracy": 0.9, "ci95": 0.01, "training_episodes": None}
    rows = [row | {"difference": None, "difference_ci95": None, "lowest": None, "highest": None}]
    rows.append(rows[0] | {"variant": "farthest", "difference": -0.0123, "difference_ci95": 0.001})
    (tmp_path / "ablations").mkdir()
    (tmp_path / "one.json").write_text(json.dumps(origin | {"evaluation": task | accuracy}))
    (tmp_path / "ablations" / "two.json").write_text(
        json.dumps(origin | {"kind": "ablation", "name": "selection", "task": task, "rows": rows})
    )
    return tmp_path


def test_the_page_is_what_the_results_give():
    assert (ROOT / "RESULTS.md").read_text(encoding="utf-8") == report(ROOT / "results"), "run `make results`"


def test_an_evaluation_stands_with_its_intervals_length_and_command(results):
    page = report(results)
    assert (
        "| `omniglot-1shot` | omniglot, 423 test classes | 20-way 1-shot, 10,000 episodes of 5 queries "
        "| 97.12 | ± 0.12 | left out | 500 of 100,000 training episodes |"
    ) in page
    assert "Trained on some CPU. Made by:\n\n```\ntapnet something\n```" in page


def test_an_ablation_stands_with_its_paired_differences(results):
    page = report(results)
    assert "### selection: `omniglot-1shot`, 20-way 1-shot" in page
    assert "| farthest | 90.00 | ± 1.00 | -1.23 | ± 0.10 |" in page


def test_results_fill_the_tables_of_the_paper(results):
    page = report(results)
    assert "| TapNet, ours | 97.12 ± 0.12 | not run | not run | not run |" in page
    assert "| farthest selected | 75.11 | 90.00 ± 1.00 |" in page


@pytest.mark.parametrize("name", ["bad.json", "ablations/bad.json"])
def test_a_file_that_is_no_result_is_named(results, name):
    (results / name).write_text("{}")
    with pytest.raises(ValueError, match=r"bad\.json is not a recorded"):
        report(results)


def test_the_first_table_has_each_cell_of_the_paper_with_ours_and_the_difference(results):
    first_screen = report(results).split("\n## ")[0].splitlines()
    rows = [line for line in first_screen if line.startswith("| ")][2:]
    assert len(rows) == 14
    assert rows[0] == (
        "| Omniglot, 423 characters | ResNet-12 | 20-way 1-shot | 98.07 | 97.12 ± 0.12 | -0.95 | 500 | — "
        "| `omniglot-1shot` |"
    )
    assert sum("| not run |" in row for row in rows) == 13


def record_other(results, name, accuracy, validation):
    """Record the evaluation of another recipe for the task of the first."""
    content = json.loads((results / "one.json").read_text())
    content["recipe"] = load_recipe(name).as_dict()
    content["evaluation"]["accuracy"] = accuracy
    content["validation"] = {"shot": 1, "accuracy": validation}
    (results / f"{name}.json").write_text(json.dumps(content))


def test_one_look_and_four_views_of_each_image_have_rows_of_their_own(results):
    for name, accuracy, validation in (
        ("omniglot-cpu-four-rotations", 0.97, 0.96),
        ("omniglot-cpu-mirrored", 0.96, 0.95),
        ("omniglot-cpu-long", 0.965, 0.94),
        ("omniglot-cpu-1200", 0.966, 0.99),  # on characters that it was trained on
    ):
        record_other(results, name, accuracy, validation)
    (results / "one.json").unlink()
    once, four = [line for line in report(results).splitlines() if "| Omniglot, 423 characters |" in line][:2]
    assert "| 96.00 ± 0.12 | -2.07 |" in once
    assert once.endswith("| `omniglot-cpu-mirrored`, ResNet-12-small |")
    assert "| 97.00 ± 0.12 | -1.07 |" in four
    assert four.endswith("| `omniglot-cpu-four-rotations`, ResNet-12-small, four views of each image |")


def test_a_network_trained_further_on_the_validation_classes_has_a_row_below_the_one_that_they_chose(results):
    for name, accuracy, validation in (
        ("omniglot-cpu-long", 0.96, 0.95),
        ("omniglot-cpu-1200", 0.966, 0.99),  # of omniglot-cpu-long
        ("omniglot-cpu-wide-1200", 0.967, 0.99),  # of another
    ):
        record_other(results, name, accuracy, validation)
    (results / "one.json").unlink()
    chosen, further = [line for line in report(results).splitlines() if "| Omniglot, 423 characters |" in line][:2]
    assert chosen.endswith("| `omniglot-cpu-long`, ResNet-12-small |")
    assert "| 96.60 ± 0.12 | -1.47 |" in further
    assert further.endswith("| `omniglot-cpu-1200`, ResNet-12-small, validation classes train, too |")


def test_an_evaluation_on_the_validation_classes_of_a_cell_counts_as_validation(results):
    record_other(results, "omniglot-cpu-mirrored", 0.96, 0.95)
    record_other(results, "omniglot-cpu-wide", 0.97, 0.98)  # on rotated validation classes
    (results / "one.json").unlink()
    chosen = next(line for line in report(results).splitlines() if "| Omniglot, 423 characters |" in line)
    assert chosen.endswith("| `omniglot-cpu-mirrored`, ResNet-12-small |")
    content = json.loads((results / "omniglot-cpu-wide.json").read_text())
    content["evaluation"] |= {"split": "val", "classes": 172, "accuracy": 0.955}
    (results / "validation.json").write_text(json.dumps(content))
    chosen = next(line for line in report(results).splitlines() if "| Omniglot, 423 characters |" in line)
    assert chosen.endswith("| `omniglot-cpu-wide`, ResNet-12-small |")


def test_the_branches_of_a_network_are_named(results):
    record_other(results, "omniglot-cpu-branches", 0.97, 0.98)
    (results / "one.json").unlink()
    row = next(line for line in report(results).splitlines() if "| Omniglot, 423 characters |" in line)
    assert row.endswith("| `omniglot-cpu-branches`, ResNet-12-small, 8 branches |")


@pytest.mark.parametrize(
    ("networks", "has_a_row"),
    [
        ("runs/omniglot-cpu-long", True),
        (["runs/omniglot-cpu-long"], True),
        ("omniglot-cpu-long.safetensors", True),
        (["runs/omniglot-cpu-long", "runs/omniglot-cpu-long"], False),
    ],
)
def test_a_network_is_trained_further_if_it_starts_from_that_one_alone(results, networks, has_a_row):
    record_other(results, "omniglot-cpu-long", 0.96, 0.95)
    record_other(results, "omniglot-cpu-1200", 0.966, 0.99)
    (results / "one.json").unlink()
    path = results / "omniglot-cpu-1200.json"
    content = json.loads(path.read_text())
    content["recipe"]["training"]["init_from"] = networks
    path.write_text(json.dumps(content))
    first_screen = report(results).split("\n## ")[0]
    assert ("validation classes train, too |" in first_screen) is has_a_row


def test_seeds_of_a_recipe_share_a_row_with_their_mean_and_range(results):
    content = json.loads((results / "one.json").read_text())
    content["recipe"]["seed"], content["evaluation"]["accuracy"] = 1, 0.98123
    (results / "other-seed.json").write_text(json.dumps(content))
    page = report(results)
    assert "| 98.07 | 97.62 (2 seeds: 97.12 to 98.12) | -0.45 |" in page
    assert "| `omniglot-1shot`, seed 1 | omniglot, 423 test classes |" in page


def test_an_interval_that_was_withdrawn_is_told_from_one_that_was_left_out(results):
    path = results / "one.json"
    content = json.loads(path.read_text())
    content["evaluation"] |= {"interval": "dropped", "ci95_bootstrap": None}
    path.write_text(json.dumps(content))
    assert "| 97.12 | ± 0.12 | withdrawn |" in report(results)


def test_the_long_lists_come_after_the_papers_tables(results):
    headings = [line.removeprefix("## ") for line in report(results).splitlines() if line.startswith("## ")]
    assert headings[-3:] == ["The paper's tables", "Ablations", "Evaluations"]


def test_a_recipe_links_to_its_network_where_that_is_kept(results):
    (results / "omniglot").mkdir()
    (results / "omniglot" / "omniglot-1shot.safetensors").touch()
    assert "| [`omniglot-1shot`](results/omniglot/omniglot-1shot.safetensors) | omniglot," in report(results)


@pytest.mark.parametrize("path", sorted((ROOT / "results").glob("*/*.safetensors")), ids=lambda path: path.stem)
def test_a_kept_network_is_the_one_of_its_results(path):
    header = read_checkpoint(path).header
    networks = [
        (result["trained"]["episodes"], result["trained"]["data"], lineage_from(result["trained"]["lineage"]))
        for result in read_results(ROOT / "results")
        if result["recipe"] == recipe_from(header.recipe.as_dict(), path.name).as_dict()
    ]
    assert (header.episode, header.data, header.lineage) in networks


def initialized_from_earlier(result, seconds, *between):
    """The result, with a training of two hours that started from another network."""
    networks = [*between, ("earlier", "first", 300, "0123")]
    ancestors = [Ancestor(*network, Data("omniglot"), "val", seconds=seconds) for network in networks]
    result["trained"] |= {"seconds": 7200.0, "lineage": asdict(Lineage(tuple(ancestors)))}
    return result


def test_hours_count_the_networks_that_one_was_initialized_from(results):
    first = json.loads((results / "one.json").read_text())
    (results / "one.json").write_text(json.dumps(initialized_from_earlier(first, None)))
    assert "| 800 | — | `omniglot-1shot` |" in report(results)
    (results / "one.json").write_text(json.dumps(initialized_from_earlier(first, 7200.0)))
    assert "| 800 | 4.0 | `omniglot-1shot` |" in report(results)


def test_a_network_that_one_learned_from_twice_counts_once(results):
    teachers = [("distilled", "teacher", 1000, digest) for digest in ("4567", "89ab")]
    first = json.loads((results / "one.json").read_text())
    twice = initialized_from_earlier(first, None, *teachers, ("initialized", "teacher", 1000, "4567"))
    (results / "one.json").write_text(json.dumps(twice))
    assert "| 2,800 | — | `omniglot-1shot` |" in report(results)

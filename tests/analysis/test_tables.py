import pytest

from tapnet.analysis.paper import TABLES
from tapnet.analysis.tables import filled_table
from tapnet.recipe import bundled_recipes, load_recipe


def result(recipe, accuracy, changes=(), **task):
    evaluation = {"accuracy": accuracy, "ci95": 0.001, "split": "test", "dataset": "omniglot", "way": 20, "shot": 1}
    return {
        "recipe": load_recipe(recipe, changes).as_dict(),
        "evaluation": evaluation | task,
        "trained": {"hardware": {"device_name": "some CPU"}},
    }


@pytest.mark.parametrize("name", TABLES)
def test_every_tapnet_cell_has_a_recipe_that_exists(name):
    names = {path.stem for path in bundled_recipes()}
    cells = [cell for row, cells in TABLES[name].rows if row.startswith("TapNet") for cell in cells]
    assert cells
    assert {cell.recipe for cell in cells} <= names


@pytest.mark.parametrize("name", TABLES)
def test_every_row_has_one_cell_a_column(name):
    assert {len(cells) for _, cells in TABLES[name].rows} == {len(TABLES[name].columns)}


def test_without_results_our_cells_are_not_run_and_the_commands_stand_below():
    filled = filled_table("main-tiered", [])
    assert filled.rows[-1] == ("TapNet, this package", "not run", "not run")
    assert [command.split(" && ")[0] for command in filled.commands] == [
        "tapnet train tiered-imagenet-1shot",
        "tapnet train tiered-imagenet-5shot",
    ]


def test_a_result_fills_its_cell_and_no_other():
    filled = filled_table("main-omniglot-mini", [result("omniglot-1shot", 0.9712)])
    assert filled.rows[-1][1:] == ("97.12 ± 0.10 (1 seed, some CPU)", "not run", "not run", "not run")


def test_a_result_of_a_changed_recipe_fills_nothing():
    results = [result("omniglot-1shot", 0.97, ["training.episodes=10"])]
    assert filled_table("main-omniglot-mini", results).rows[-1][1] == "not run"


def test_a_result_on_another_task_fills_nothing():
    results = [result("omniglot-1shot", 0.97, way=5), result("omniglot-1shot", 0.97, split="val")]
    assert filled_table("main-omniglot-mini", results).rows[-1][1] == "not run"


def test_an_unknown_table_lists_those_there_are():
    with pytest.raises(ValueError, match="main-omniglot-mini, main-tiered"):
        filled_table("table-1", [])

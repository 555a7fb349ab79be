from pathlib import Path

import pytest

from tapnet.errors import UserError
from tapnet.jobs.sweep import read_sweep
from tapnet.recipe import load_recipe

ROOT = Path(__file__).parents[2]


@pytest.fixture
def sweep(tmp_path):
    def read(text):
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return read_sweep(path)

    return read


def test_a_grid_is_every_combination_of_recipes_methods_values_and_seeds(sweep):
    found = sweep(
        """
        recipe: quickdraw
        method: [tapnet, protonet]
        grid: {training.query: [5, 8]}
        seeds: [0, 1]
        """
    )
    assert len(found.recipes) == 8
    recipe = found.recipes["quickdraw-protonet-query=8-seed1"]
    assert (recipe.method.name, recipe.training.query, recipe.seed) == ("protonet", 8, 1)


def test_a_run_without_changes_is_the_recipe_under_its_own_name(sweep):
    assert sweep("recipe: [quickdraw, omniglot-cpu]").recipes == {
        "quickdraw": load_recipe("quickdraw"),
        "omniglot-cpu": load_recipe("omniglot-cpu"),
    }


def test_listed_runs_take_what_they_leave_out_from_above(sweep):
    found = sweep(
        """
        recipe: quickdraw
        set: {training.episodes: 7}
        runs:
          - {name: short}
          - {name: long, set: {training.query: 3}, seeds: 5}
        """
    )
    assert list(found.recipes) == ["short", "long-seed5"]
    assert found.recipes["short"].training.episodes == 7
    long = found.recipes["long-seed5"]
    assert (long.training.episodes, long.training.query, long.seed, long.name) == (7, 3, 5, "long-seed5")


def test_a_recipe_beside_the_file_is_found(sweep, tmp_path):
    (tmp_path / "own.yaml").write_text((ROOT / "recipes" / "quickdraw.yaml").read_text().replace("quickdraw", "own", 1))
    assert sweep("recipe: own.yaml").recipes


def test_the_folder_is_named_after_the_file_unless_told(sweep):
    assert sweep("recipe: quickdraw").out == Path("runs/mine")
    assert sweep("{recipe: quickdraw, out: elsewhere}").out == Path("elsewhere")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "needs the keys"),
        ("words " * 1000, "needs the keys .{80,150}$"),
        ("{recipe: [", "is not a YAML file"),
        ("{recpie: quickdraw}", "unknown keys: recpie"),
        ("seeds: [0]", "needs a recipe"),
        ("{recipe: nowhere}", "nowhere"),
        ("{recipe: quickdraw, seeds: []}", "empty list for seeds"),
        ("{recipe: quickdraw, grid: 3}", "needs keys with values for grid, got 3"),
        ("{recipe: quickdraw, out: 5}", "needs the name of a folder for out, got 5"),
        ("{recipe: quickdraw, test: maybe}", "needs true or false for test"),
        ("{recipe: [quickdraw, quickdraw]}", "two runs called quickdraw"),
        ("{recipe: quickdraw, set: {training.epsiodes: 3}}", "epsiodes"),
        ("{recipe: quickdraw, runs: [3]}", "run 1 needs the keys"),
    ],
)
def test_a_wrong_file_is_refused_in_a_sentence(sweep, text, words):
    with pytest.raises((UserError, ValueError, FileNotFoundError), match=words):
        sweep(text)


def test_every_sweep_of_the_repository_loads():
    assert all(read_sweep(path).recipes for path in (ROOT / "sweeps").glob("*.yaml"))

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
    expanded = sweep(
        """
        recipe: quickdraw
        method: [tapnet, protonet]
        grid: {training.query: [5, 8]}
        seeds: [0, 1]
        """
    )
    assert len(expanded.recipes) == 8
    recipe = expanded.recipes["quickdraw-protonet-query=8-seed1"]
    assert (recipe.method.name, recipe.training.query, recipe.seed) == ("protonet", 8, 1)


def test_a_run_without_changes_is_the_recipe_under_its_own_name(sweep, tmp_path):
    (tmp_path / "own.yaml").write_text("extends: quickdraw\nname: own\n")  # beside the file
    recipes = sweep("recipe: [quickdraw, omniglot-cpu, own.yaml]").recipes
    assert list(recipes) == ["quickdraw", "omniglot-cpu", "own"]
    assert recipes["quickdraw"] == load_recipe("quickdraw")
    assert recipes["own"] == load_recipe("quickdraw", ["name=own"])


def test_listed_runs_take_what_they_leave_out_from_above(sweep):
    expanded = sweep(
        """
        recipe: quickdraw
        set: {training.episodes: 7}
        runs:
          - {name: short}
          - {name: long, set: {training.query: 3}, seeds: 5}
        """
    )
    assert list(expanded.recipes) == ["short", "long-seed5"]
    assert expanded.recipes["short"].training.episodes == 7
    long = expanded.recipes["long-seed5"]
    assert (long.training.episodes, long.training.query, long.seed, long.name) == (7, 3, 5, "long-seed5")


def test_the_folder_is_named_after_the_file_unless_told(sweep):
    assert sweep("recipe: quickdraw").out == Path("runs/mine")
    assert sweep("{recipe: quickdraw, out: elsewhere}").out == Path("elsewhere")


WRONG = {
    "": "the file: Input should be a valid dictionary, got None; the keys of a sweep are name, recipe",
    "words " * 1000: "the file: Input should be a valid dictionary, got 'words .{80,150}$",
    "{recipe: [": "is not a YAML file",
    "{recpie: quickdraw}": "recpie: is not a key of a sweep",
    "seeds: [0]": "needs a recipe",
    "{recipe: nowhere}": "nowhere",
    "{recipe: quickdraw, seeds: []}": "seeds: List should have at least 1 item",
    "{recipe: quickdraw, grid: 3}": "grid: Input should be a valid dictionary, got 3",
    "{recipe: quickdraw, out: 5}": "out: Input should be a valid string, got 5",
    "{recipe: quickdraw, test: maybe}": "test: Input should be a valid boolean",
    "{recipe: [quickdraw, quickdraw]}": "two runs called quickdraw",
    "{recipe: quickdraw, set: {training.epsiodes: 3}}": "epsiodes",
    "{recipe: quickdraw, runs: [3]}": r"runs\.0: Input should be a valid dictionary",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_is_refused_in_a_sentence(sweep, text):
    with pytest.raises(UserError, match=WRONG[text]):
        sweep(text)


def test_every_sweep_of_the_repository_loads():
    assert all(read_sweep(path).recipes for path in (ROOT / "sweeps").glob("*.yaml"))

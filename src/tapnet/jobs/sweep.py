"""A sweep: recipes, methods, changes, grids of values and seeds in a YAML file, each combination one ordinary run.

For instance::

    out: runs/queries                # the folder of the runs' folders (default: runs/NAME of the file)
    test: true                       # whether each run ends by scoring test classes (default: false)
    recipe: quickdraw                # or several: [quickdraw, my.yaml]
    method: [tapnet, protonet]       # in place of the recipe's own
    set: {training.episodes: 300}    # changes of every run
    grid:                            # every combination of these values
      training.query: [5, 8]
    seeds: [0, 1, 2]
    runs:                            # or runs listed one by one; what they leave out stands above
      - {name: long, set: {training.episodes: 3000}}
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from tapnet.checkpoint import read_header
from tapnet.errors import NotFoundError, UserError
from tapnet.paths import LAST
from tapnet.recipe import Recipe, changed, load_recipe
from tapnet.text import one_line, shorten
from tapnet.training.run_folder import EVALUATION, RunFolder

_RUN_KEYS = ("name", "recipe", "method", "set", "grid", "seeds")
_SWEEP_KEYS = ("out", "test", *_RUN_KEYS, "runs")
Train = Callable[..., object]  # takes a recipe, a folder and whether to resume


@dataclass(frozen=True)
class Sweep:
    """Runs by the names of their folders in `out`, and whether they score test classes at their end."""

    out: Path
    recipes: dict[str, Recipe]
    test: bool = False


def read_sweep(path: str | Path) -> Sweep:
    """Return the runs that a YAML file asks for; raise UserError if it or one of its recipes is wrong."""
    path = Path(path)
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {path}: give a YAML file with the recipes of a sweep.") from None
    except (yaml.YAMLError, UnicodeDecodeError, IsADirectoryError) as error:
        raise UserError(f"{path} is not a YAML file: {one_line(error)}.") from None
    _check_keys(values, _SWEEP_KEYS, str(path))
    test, out = values.get("test", False), values.get("out") or str(Path("runs") / path.stem)
    if not isinstance(test, bool):
        raise UserError(f"{path} needs true or false for test, got {test!r}.")
    if not isinstance(out, str):
        raise UserError(f"{path} needs the name of a folder for out, got {out!r}.")
    shared = {key: values[key] for key in _RUN_KEYS if key in values}
    recipes: dict[str, Recipe] = {}
    for number, entry in enumerate(_list(values.get("runs", [{}]), "runs", path), 1):
        _check_keys(entry, _RUN_KEYS, f"{path}, run {number}")
        merged = {key: (shared.get(key) or {}) | (entry.get(key) or {}) for key in ("set", "grid")}
        for name, recipe in _expand(shared | entry | merged, path):
            if name in recipes:
                raise UserError(f"{path} has two runs called {name}: give one of them a name.")
            recipes[name] = recipe
    return Sweep(Path(out), recipes, test)


def _check_keys(values: Any, keys: tuple[str, ...], where: str) -> None:
    if not isinstance(values, dict):
        raise UserError(f"{where} needs the keys {', '.join(keys)}, got {shorten(repr(values), 60)}.")
    if unknown := [str(key) for key in values if key not in keys]:
        raise UserError(f"{where} has unknown keys: {', '.join(unknown)}. There are {', '.join(keys)}.")
    for key in ("set", "grid"):
        if not isinstance(values.get(key) or {}, dict):
            raise UserError(f"{where} needs keys with values for {key}, got {values[key]!r}.")


def _list(value: Any, key: str, path: Path) -> list[Any]:
    """Return what may be one value or a list of them as a list."""
    values = value if isinstance(value, list) else [value]
    if not values:
        raise UserError(f"{path} has an empty list for {key}: give at least one value, or leave it out.")
    return values


def _expand(entry: dict[str, Any], path: Path) -> Iterator[tuple[str, Recipe]]:
    """Yield the runs of an entry: one for each recipe, method, combination of the grid and seed."""
    if "recipe" not in entry:
        raise UserError(f"{path} needs a recipe: a YAML file, or a name that `tapnet recipes` lists.")
    bases, methods = _list(entry["recipe"], "recipe", path), _list(entry.get("method"), "method", path)
    grid = {str(key): _list(value, f"grid, {key}", path) for key, value in entry["grid"].items()}
    seeds = [{"seed": seed} for seed in _list(entry["seeds"], "seeds", path)] if "seeds" in entry else [{}]
    for base, method, values, seed in product(bases, methods, product(*grid.values()), seeds):
        beside = path.parent / str(base)
        chosen = dict(zip(grid, values, strict=True))
        changes = [f"{key}={json.dumps(value)}" for key, value in (entry["set"] | chosen | seed).items()]
        recipe = load_recipe(str(beside if beside.is_file() else base), changes, method)
        words = [str(entry.get("name") or recipe.name), *(f"{key.split('.')[-1]}={chosen[key]}" for key in chosen)]
        words += [f"seed{number}" for number in seed.values()]
        name = "".join(letter if letter.isalnum() or letter in "-_.=," else "-" for letter in "-".join(words))
        yield name, changed(recipe, [f"name={json.dumps(name)}"])


@dataclass(frozen=True)
class Outcome:
    """How a run of a sweep ended: `reason` is empty unless it failed."""

    name: str
    folder: Path
    reason: str = ""


def check_trainable(recipes: Mapping[str, Recipe]) -> None:
    """Raise UserError if one of the recipes could not be trained, before the first one is."""
    for recipe in recipes.values():
        images = recipe.data.images(recipe.data.train_split)
        images.episodes(recipe.training.way, recipe.training.shot, recipe.training.query)
        recipe.with_num_classes(len(images.class_names)).build_on_meta(images.image_shape)


def unfinished(recipes: Mapping[str, Recipe], out: Path, test: bool = False) -> dict[str, Recipe]:
    """Return the runs that are not finished in their folders in `out`.

    Raise UserError if a folder holds a finished run of another recipe.
    """
    return {name: recipe for name, recipe in recipes.items() if not _is_finished(recipe, out / name, test)}


def _is_finished(recipe: Recipe, folder: Path, test: bool) -> bool:
    run = RunFolder(folder)
    if run.metadata().get("state") != "finished" or not can_resume(folder):
        return False
    images = recipe.data.images(recipe.data.train_split)
    if read_header(folder / LAST).recipe != recipe.with_num_classes(len(images.class_names)):
        raise UserError(f"{folder} holds a run of another recipe: give another folder.", parameter="out")
    return not test or (folder / EVALUATION).exists() or bool(run.metadata().get("not_tested"))


def can_resume(folder: Path) -> bool:
    """Return whether the folder holds a run."""
    return (folder / LAST).exists()


def train_one_by_one(recipes: Mapping[str, Recipe], out: Path, train: Train) -> Iterator[Outcome]:
    """Train each run in its folder in `out`, one after the other, and yield how it ended.

    A run that fails does not keep the others from being trained.
    """
    for name, recipe in recipes.items():
        try:
            train(recipe, out / name, resume=can_resume(out / name))
        except (UserError, OSError) as error:
            yield Outcome(name, out / name, one_line(error))
        else:
            yield Outcome(name, out / name)


def train_all(recipes: Mapping[str, Recipe], out: Path, train: Train, log: Callable[[str], None]) -> dict[str, Path]:
    """Train each run in its folder in `out` and return those folders; the first error ends it.

    A finished run is not trained again, which is logged; an interrupted one is resumed.
    """
    check_trainable(recipes)
    todo = unfinished(recipes, out)
    for name in recipes:
        folder = out / name
        if name in todo:
            train(recipes[name], folder, resume=can_resume(folder))
        else:
            log(f"{name}: trained already, in {folder}")
    return {name: out / name for name in recipes}

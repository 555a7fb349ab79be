"""A sweep as a YAML file: recipes, methods, changes, grids of values and seeds, each combination one run.

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
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from tapnet.errors import NotFoundError, UserError
from tapnet.recipe import Recipe, changed, load_recipe
from tapnet.text import one_line, shorten

_RUN_KEYS = ("name", "recipe", "method", "set", "grid", "seeds")
_SWEEP_KEYS = ("out", "test", *_RUN_KEYS, "runs")


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
    shared = {key: values[key] for key in _RUN_KEYS if key in values}
    listed = _list(values.get("runs", [{}]), "runs", path)
    recipes: dict[str, Recipe] = {}
    for number, entry in enumerate(listed, 1):
        _check_keys(entry, _RUN_KEYS, f"{path}, run {number}")
        for name, recipe in _expand(_merged(shared, entry), path):
            if name in recipes:
                raise UserError(f"{path} has two runs called {name}: give one of them a name.")
            recipes[name] = recipe
    if not isinstance(values.get("test", False), bool):
        raise UserError(f"{path} needs true or false for test, got {values['test']!r}.")
    if not isinstance(values.get("out") or "", str):
        raise UserError(f"{path} needs the name of a folder for out, got {values['out']!r}.")
    return Sweep(Path(values.get("out") or Path("runs") / path.stem), recipes, values.get("test", False))


def _check_keys(values: Any, keys: tuple[str, ...], where: str) -> None:
    if not isinstance(values, dict):
        raise UserError(f"{where} needs the keys {', '.join(keys)}, got {shorten(repr(values), 60)}.")
    if unknown := [str(key) for key in values if key not in keys]:
        raise UserError(f"{where} has unknown keys: {', '.join(unknown)}. There are {', '.join(keys)}.")
    for key in ("set", "grid"):
        if not isinstance(values.get(key) or {}, dict):
            raise UserError(f"{where} needs keys with values for {key}, got {values[key]!r}.")


def _merged(shared: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any]:
    both = {key: {**(shared.get(key) or {}), **(entry.get(key) or {})} for key in ("set", "grid")}
    return shared | entry | both


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
    named, methods = _list(entry["recipe"], "recipe", path), _list(entry.get("method"), "method", path)
    grid = {str(key): _list(value, f"grid, {key}", path) for key, value in entry["grid"].items()}
    seeds = _list(entry["seeds"], "seeds", path) if "seeds" in entry else [None]
    for recipe, method, values, seed in product(named, methods, product(*grid.values()), seeds):
        chosen = dict(zip(grid, values, strict=True))
        changes = entry["set"] | chosen | ({} if seed is None else {"seed": seed})
        loaded = load_recipe(_find(str(recipe), path), list(_changes(changes)), method)
        words = [str(entry.get("name") or loaded.name), *(f"{key.split('.')[-1]}={chosen[key]}" for key in chosen)]
        name = _folder_name("-".join(words + ([] if seed is None else [f"seed{seed}"])))
        yield name, changed(loaded, list(_changes({"name": name})))


def _find(recipe: str, path: Path) -> str:
    """Return a recipe beside the file of the sweep, if there is one of that name; else the name as it is."""
    beside = path.parent / recipe
    return str(beside) if beside.is_file() else recipe


def _changes(values: dict[str, Any]) -> Iterator[str]:
    return (f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in values.items())


def _folder_name(text: str) -> str:
    return "".join(character if character.isalnum() or character in "-_.=," else "-" for character in text)

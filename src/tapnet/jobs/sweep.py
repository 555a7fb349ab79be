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
from typing import Annotated, Any

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from tapnet.checkpoint import read_header
from tapnet.errors import NotFoundError, UserError
from tapnet.paths import LAST
from tapnet.recipe import Recipe, changed, load_recipe
from tapnet.text import one_line, shorten
from tapnet.training.run_folder import EVALUATION, RunFolder

_listed = BeforeValidator(lambda value: value if isinstance(value, list) else [value])
_Several = Annotated[list[Any], Field(min_length=1), _listed]  # one value, or several
Outcome = tuple[str, str]  # the name of a run, and why it failed, or nothing


class _Runs(BaseModel):
    """What a file may say of all its runs, and an entry of `runs` of its own."""

    model_config = ConfigDict(extra="forbid")
    name: str | None = None
    recipe: _Several = []
    method: _Several = [None]
    set: dict[str, Any] = {}
    grid: dict[str, _Several] = {}
    seeds: _Several = []


class _File(_Runs):
    out: str | None = None
    test: bool = False
    runs: Annotated[list[_Runs], Field(min_length=1)] = [_Runs()]


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
        file = _File.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise NotFoundError(f"There is no file {path}: give a YAML file with the recipes of a sweep.") from None
    except ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(map(str, problem["loc"])) or "the file"
        unknown = problem["type"] == "extra_forbidden"
        reason = "is not a key of a sweep" if unknown else problem["msg"].partition(" or instance")[0]
        got, keys = shorten(repr(problem["input"]), 60), ", ".join(_File.model_fields)
        raise UserError(f"{path}, {key}: {reason}, got {got}; the keys of a sweep are {keys}.") from None
    except (yaml.YAMLError, UnicodeDecodeError, IsADirectoryError) as error:
        raise UserError(f"{path} is not a YAML file: {one_line(error)}.") from None
    recipes: dict[str, Recipe] = {}
    shared = file.model_dump(exclude={"out", "test", "runs"})
    for entry in file.runs:
        values = shared | entry.model_dump(exclude_unset=True)
        merged = {"set": file.set | entry.set, "grid": file.grid | entry.grid}
        for name, recipe in _expand(values | merged, path):
            if name in recipes:
                raise UserError(f"{path} has two runs called {name}: give one of them a name.")
            recipes[name] = recipe
    return Sweep(Path(file.out or Path("runs") / path.stem), recipes, file.test)


def _expand(entry: dict[str, Any], path: Path) -> Iterator[tuple[str, Recipe]]:
    """Yield the runs of an entry: one for each recipe, method, combination of the grid and seed."""
    if not entry["recipe"]:
        raise UserError(f"{path} needs a recipe: a YAML file, or a name that `tapnet recipes` lists.")
    grid, seeds = entry["grid"], [{"seed": seed} for seed in entry["seeds"]] or [{}]
    for base, method, values, seed in product(entry["recipe"], entry["method"], product(*grid.values()), seeds):
        beside = path.parent / str(base)
        chosen = dict(zip(grid, values, strict=True))
        changes = [f"{key}={json.dumps(value)}" for key, value in (entry["set"] | chosen | seed).items()]
        recipe = load_recipe(str(beside if beside.is_file() else base), changes, method)
        words = [str(entry["name"] or recipe.name), *(f"{key.split('.')[-1]}={chosen[key]}" for key in chosen)]
        words += [f"seed{number}" for number in seed.values()]
        name = "".join(letter if letter.isalnum() or letter in "-_.=," else "-" for letter in "-".join(words))
        yield name, changed(recipe, [f"name={json.dumps(name)}"])


def check_trainable(recipes: Mapping[str, Recipe]) -> None:
    """Raise UserError if one of the recipes could not be trained, before the first one is."""
    for recipe in recipes.values():
        images = recipe.data.images(recipe.data.train_split)
        images.episodes(recipe.training.way, recipe.training.shot, recipe.training.query)
        recipe.with_num_classes(len(images.class_names)).build_on_meta(images.image_shape)


def unfinished(recipes: Mapping[str, Recipe], out: Path, test: bool = False) -> dict[str, Recipe]:
    """Return the runs that are not finished; raise UserError if a folder in `out` has one of another recipe."""
    todo = dict(recipes)
    for name, recipe in recipes.items():
        folder, metadata = out / name, RunFolder(out / name).metadata()
        if metadata.get("state") != "finished" or not can_resume(folder):
            continue
        images = recipe.data.images(recipe.data.train_split)
        if read_header(folder / LAST).recipe != recipe.with_num_classes(len(images.class_names)):
            raise UserError(f"{folder} holds a run of another recipe: give another folder.", parameter="out")
        if not test or (folder / EVALUATION).exists() or metadata.get("not_tested"):
            del todo[name]
    return todo


def can_resume(folder: Path) -> bool:
    """Return whether the folder holds a run."""
    return (folder / LAST).exists()


def train_one_by_one(recipes: Mapping[str, Recipe], out: Path, train: Callable[..., object]) -> Iterator[Outcome]:
    """Train each run in its folder in `out` by `train(recipe, folder, resume)`, one after the other, whichever fail."""
    for name, recipe in recipes.items():
        reason = ""
        try:
            train(recipe, out / name, resume=can_resume(out / name))
        except (UserError, OSError) as error:
            reason = one_line(error)
        yield name, reason

"""Recipes from YAML files and dictionaries, with `key.sub=value` changes and errors that name the key."""

from __future__ import annotations

import copy
import dataclasses
import difflib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import yaml
from pydantic import TypeAdapter, ValidationError

from tapnet.earlier_names import with_current_key, with_current_names
from tapnet.errors import NotFoundError, UserError
from tapnet.methods import METHODS
from tapnet.recipe import Recipe
from tapnet.wording import one_line


def bundled_recipes() -> list[Path]:
    """Return the recipes that come with the package, sorted; in a checkout those of its `recipes/` folder."""
    here = Path(__file__).parent
    installed, checkout = here / "recipes", here.parents[1] / "recipes"
    return sorted((installed if installed.is_dir() else checkout).rglob("*.yaml"), key=lambda path: path.stem)


def find_recipe(name_or_path: str) -> Path:
    """Return the file of a recipe, by its path or by the name of a bundled recipe."""
    path = Path(name_or_path)
    if path.is_file():
        return path
    bundled = {file.stem: file for file in bundled_recipes()}
    if name_or_path in bundled:
        return bundled[name_or_path]
    if (path / "recipe.yaml").is_file():
        raise IsADirectoryError(
            f"{path} is the folder of a run: `tapnet train --resume {path}` resumes it, and its recipe is "
            f"{path / 'recipe.yaml'}."
        )
    close = " or ".join(difflib.get_close_matches(name_or_path, bundled))
    raise NotFoundError(
        f"There is no recipe file {name_or_path!r} and no bundled recipe of that name"
        f"{f' (did you mean {close}?)' if close else ''}; `tapnet recipes` lists them."
    )


def load_recipe(name_or_path: str, changes: Sequence[str] = (), method: str | None = None) -> Recipe:
    """Return the recipe in a YAML file with `key.sub=value` changes applied, values written as in YAML.

    With `method` another method replaces that of the recipe, before the changes.
    """
    path = find_recipe(name_or_path)
    values = _read_values(path)
    if method is None or _method_name(values) == method:
        return _with_changes(values, str(path), changes)
    values |= {"name": f"{values.get('name')}-{method}", "method": {"name": method, "options": {}}}
    recipe = _with_changes(values, str(path), changes)
    way_option = METHODS[recipe.method.name].way_option
    if way_option is None or way_option in recipe.method.options:
        return recipe
    return changed(recipe, [f"method.options.{way_option}={recipe.training.way}"])


def _read_values(path: Path, extending: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the keys of a YAML file, added to those of the recipe that it extends, if there is one."""
    if path in extending:
        raise UserError(f"{path} extends itself: {' → '.join(file.stem for file in [*extending, path])}.")
    try:
        values = copy.deepcopy(_parsed(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a YAML file: {one_line(error)}.") from None
    if not isinstance(values, dict):
        raise UserError(
            f"{path} needs the keys of a recipe, got {'nothing' if values is None else type(values).__name__}."
        )
    base = values.pop("extends", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise UserError(f"{path}: `extends` is the name of a recipe or a file beside this one, got {base!r}.")
    beside = path.parent / base
    return _merged(_read_values(beside if beside.is_file() else find_recipe(base), [*extending, path]), values)


def _merged(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Return the base with these values in place of its own, key by key in groups.

    A group with another `name`, such as another method, has none of the options of the base.
    """
    merged = dict(base)
    for key, value in values.items():
        group = base.get(key)
        is_group = isinstance(group, dict) and isinstance(value, dict)
        same_kind = is_group and value.get("name", group.get("name")) == group.get("name")
        merged[key] = _merged(group, value) if same_kind else value
    return merged


@cache
def _parsed(text: str) -> Any:
    """Return the values of a YAML text; the tables of the paper load the same recipes many times."""
    return yaml.safe_load(text)


def _method_name(values: dict[str, Any]) -> Any:
    method = with_current_names(values).get("method")
    return method.get("name") if isinstance(method, dict) else None


def changed(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """Return the recipe with `key.sub=value` changes applied."""
    return _with_changes(recipe.as_dict(), recipe.name, changes)


def _with_changes(values: dict[str, Any], source: str, changes: Sequence[str]) -> Recipe:
    for change in changes:
        _apply(values, with_current_key(change))
    return recipe_from(values, source, changes)


def _apply(values: dict[str, Any], change: str) -> None:
    key, equals, value = change.partition("=")
    if not equals or not key:
        raise UserError(f"A change is written key=value, such as training.episodes=100, got {change!r}.")
    *parents, leaf = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise UserError(f"Cannot set {key!r}: `{parent}` of the recipe is a value, not a group of keys.")
    try:
        values[leaf] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise UserError(f"{change}: the value is not YAML ({one_line(error)}).") from None


def recipe_from(values: Any, source: str, changes: Sequence[str] = ()) -> Recipe:
    """Return the recipe in a nested dictionary; raise UserError that names the wrong key and the change that set it."""
    try:
        return TypeAdapter(Recipe).validate_python(with_current_names(values))
    except ValidationError as error:
        problems = error.errors()
        causes = [change for change in changes if any(_may_cause(change, problem["loc"]) for problem in problems)]
        sentences = "; ".join(map(_describe, problems))
        raise UserError(f"{' '.join(causes) or source}: {sentences}.", "set" if causes else None) from None


def _may_cause(change: str, location: Sequence[int | str]) -> bool:
    """Return whether a change set the key at this location, a part of it or the group it is in."""
    changed_key = change.partition("=")[0].split(".")
    return all(ours == str(theirs) for ours, theirs in zip(changed_key, location, strict=False))


def _describe(problem: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    if problem["type"] == "unexpected_keyword_argument":
        return f"`{key}` is not a key of a recipe ({_suggestion(location)})"
    if problem["type"].startswith("missing"):
        return f"`{key}` is missing"
    reason = problem["msg"].removeprefix("Value error, ")
    return f"`{key}`: {reason}, got {problem['input']!r}" if key and not isinstance(problem["input"], dict) else reason


def _suggestion(location: Sequence[str]) -> str:
    """Return a question with the key that is spelled most like this one, or the list of valid keys."""
    *group, leaf = location
    part = get_type_hints(Recipe)[group[0]] if group else Recipe
    names = [field.name for field in dataclasses.fields(part)]
    close = difflib.get_close_matches(leaf, names, n=1)
    return f"did you mean `{'.'.join([*group, *close])}`?" if close else f"valid keys: {', '.join(names)}"

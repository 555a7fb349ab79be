"""Many runs, each in an ordinary run folder: finished ones are left alone, interrupted ones are resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tapnet.checkpoint import read_header
from tapnet.errors import UserError
from tapnet.paths import LAST
from tapnet.recipe import Recipe
from tapnet.text import one_line
from tapnet.training.run_folder import EVALUATION, RunFolder


class Trainer(Protocol):
    """What trains by a recipe in a folder."""

    def __call__(self, recipe: Recipe, folder: Path, *, resume: bool) -> object: ...


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


def train_one_by_one(recipes: Mapping[str, Recipe], out: Path, train: Trainer) -> Iterator[Outcome]:
    """Train each run in its folder in `out`, one after the other, and yield how it ended.

    A run that fails does not keep the others from being trained.
    """
    for name, recipe in recipes.items():
        folder = out / name
        try:
            train(recipe, folder, resume=can_resume(folder))
        except (UserError, OSError) as error:
            yield Outcome(name, folder, one_line(error))
        else:
            yield Outcome(name, folder)


def can_resume(folder: Path) -> bool:
    """Return whether the folder holds a run."""
    return (folder / LAST).exists()


def train_all(recipes: Mapping[str, Recipe], out: Path, train: Trainer, log: Callable[[str], None]) -> dict[str, Path]:
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


def _is_finished(recipe: Recipe, folder: Path, test: bool) -> bool:
    run = RunFolder(folder)
    if run.metadata().get("state") != "finished" or not can_resume(folder):
        return False
    images = recipe.data.images(recipe.data.train_split)
    if read_header(folder / LAST).recipe != recipe.with_num_classes(len(images.class_names)):
        raise UserError(f"{folder} holds a run of another recipe: give another folder.", parameter="out")
    return not test or (folder / EVALUATION).exists() or bool(run.metadata().get("not_tested"))

"""A recipe: everything that decides the result of a training run, checked when it is built."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import yaml
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from tapnet.backbones import BACKBONES, PRETRAINED, Backbone, ImageShape, make_backbone
from tapnet.data import ImageSet, load_dataset
from tapnet.data.augmentation import AUGMENTATIONS
from tapnet.data.episodes import EpisodeSpec
from tapnet.earlier_names import with_current_key, with_current_names
from tapnet.errors import NotFoundError, UserError
from tapnet.methods import METHODS, Method
from tapnet.registry import build

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Count = Annotated[int, Field(ge=1)]
Options = dict[str, Any]


@dataclass(frozen=True, config=_STRICT)
class Data:
    """Which images; `options` go to the dataset (rotations, split seeds)."""

    name: str
    root: str | None = None
    train_split: str = "train"
    options: Options = dataclasses.field(default_factory=dict)

    def images(self, split: str, root: str | None = None) -> ImageSet:
        """One split of them; `root` is where they lie, when not where the recipe says."""
        return load_dataset(self.name, split, root or self.root, **self.options)


@dataclass(frozen=True, config=_STRICT)
class Part:
    """A backbone or method by name, and its options."""

    name: str
    options: Options = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
class Training:
    """Episodes and optimizer. `weight_decay` is the authors': w ← w·(1 - decay) per step, whatever the learning rate.

    `meta_batch` episodes make one step, by the mean of their gradients; `episodes` counts them all. A cosine goes down
    to zero `cycles` times, in as many episodes each. With `ema_decay` an exponential moving average of the weights is
    validated and kept in their place.
    """

    way: Annotated[int, Field(ge=2)]
    shot: Count
    query: Count
    episodes: Count
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    schedule: Literal["step", "cosine"] = "step"
    cycles: Count = 1
    decay_every: Count = 40_000
    decay_ratio: Annotated[float, Field(gt=0, le=1)] = 0.1
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    augmentation: str = "none"
    frozen_backbone: bool = False  # train the rest only, over features computed once
    init_from: Annotated[str, Field(min_length=1)] | None = None  # a checkpoint, in place of random weights
    meta_batch: Count = 1
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None  # such as 0.999: averages over some 1000 steps

    def episode_spec(self, seed: int) -> EpisodeSpec:
        return EpisodeSpec(self.way, self.shot, self.query, self.episodes, seed)

    def __post_init__(self) -> None:
        if self.episodes % self.meta_batch:
            raise UserError(
                "training.episodes needs to be a multiple of training.meta_batch, got "
                f"{self.episodes} and {self.meta_batch}"
            )
        if self.cycles > 1 and self.schedule != "cosine":
            raise UserError(f"training.cycles are those of training.schedule=cosine, got {self.schedule}")
        if self.episodes % (self.cycles * self.meta_batch):
            raise UserError(
                f"training.episodes needs to be a multiple of training.cycles × training.meta_batch = "
                f"{self.cycles * self.meta_batch}, got {self.episodes}"
            )
        steps = self.episodes // self.meta_batch
        if self.ema_decay is not None and (1 - self.ema_decay) * steps < 1:
            raise UserError(
                f"training.ema_decay={self.ema_decay:g} averages over about {1 / (1 - self.ema_decay):.0f} steps, more "
                f"than the {steps} of the run: lower it, set it to null, or raise training.episodes"
            )


@dataclass(frozen=True, config=_STRICT)
class Validation:
    """How validation classes choose the model: every so many training episodes, on always the same episodes."""

    way: Annotated[int, Field(ge=2)] = 5
    shot: Count = 5
    query: Count = 15
    episodes: Annotated[int, Field(ge=2)] = 600
    every: Count = 500
    split: str = "val"

    def episode_spec(self, seed: int) -> EpisodeSpec:
        return EpisodeSpec(self.way, self.shot, self.query, self.episodes, seed)


@dataclass(frozen=True, config=_STRICT)
class Recipe:
    """The parts of a run. `seed` decides initialization, episodes, dropout and augmentation."""

    name: str
    data: Data
    backbone: Part
    method: Part
    training: Training
    validation: Validation = dataclasses.field(default_factory=Validation)
    seed: Annotated[int, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        if self.name in ("", ".", "..") or {*self.name} & {*"/\\\0"}:
            raise UserError(f"name is that of the folder of a run, too, and has no slashes, got {self.name!r}")
        for kind, name, choices in (
            ("method", self.method.name, METHODS),
            ("backbone", self.backbone.name, BACKBONES),
            ("augmentation", self.training.augmentation, AUGMENTATIONS),
        ):
            if name not in choices:
                raise UserError(f"{kind} is one of {', '.join(choices)}, got {name!r}")
        option = METHODS[self.method.name].way_option
        ways = None if option is None else self.method.options.get(option)
        if ways is not None and not self.validation.way <= self.training.way == ways:
            raise UserError(
                f"training.way and method.options.{option} need to be one number, and validation.way no more, got "
                f"{self.training.way}, {ways} and {self.validation.way}"
            )
        if self.training.augmentation == "window" and not METHODS[self.method.name].takes_windows:
            able = ", ".join(name for name, method in METHODS.items() if method.takes_windows)
            raise UserError(f"training.augmentation=window is for the method {able}, got {self.method.name}")
        if self.training.frozen_backbone:
            self._check_frozen_backbone()

    def _check_frozen_backbone(self) -> None:
        if self.backbone.name not in PRETRAINED:
            raise UserError(
                f"a frozen backbone needs to be pretrained: {' or '.join(PRETRAINED)}, got {self.backbone.name}"
            )
        if self.training.augmentation != "none":
            raise UserError(
                "over a frozen backbone every image has its features once, so training.augmentation needs to be none, "
                f"got {self.training.augmentation}"
            )
        if self.training.init_from is not None:
            raise UserError(
                "over a frozen backbone the parameters start at random, so training.init_from needs to be "
                f"left out, got {self.training.init_from}"
            )

    def build(self, image_shape: ImageShape) -> Method:
        """The method with fresh parameters, for images of this shape (channels, height, width)."""
        return self.over(make_backbone(self.backbone.name, image_shape, **self.backbone.options))

    def outline(self, image_shape: ImageShape) -> Method:
        """The method on PyTorch's meta device: shapes without values, at no cost; a pretrained backbone has its own."""
        with nullcontext() if self.backbone.name in PRETRAINED else torch.device("meta"):
            return self.build(image_shape)

    def over(self, backbone: Backbone) -> Method:
        """The method with fresh parameters over this backbone."""
        return build(f"Method {self.method.name!r}", METHODS[self.method.name], backbone, self.method.options)

    def with_num_classes(self, count: int) -> Recipe:
        """The recipe with the number of training classes, if its method asks for it and does not know it yet."""
        if not METHODS[self.method.name].auxiliary_classes or "num_classes" in self.method.options:
            return self
        options = self.method.options | {"num_classes": count}
        return dataclasses.replace(self, method=dataclasses.replace(self.method, options=options))

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def recipe_from(values: Any, source: str, changes: Sequence[str] = ()) -> Recipe:
    """The checked recipe in a nested dictionary; an error names the key and, as its source, a change that set it."""
    try:
        return TypeAdapter(Recipe).validate_python(with_current_names(values))
    except ValidationError as error:
        problems = error.errors()
        blamed = [change for change in changes if any(_concerns(change, problem) for problem in problems)]
        source = " ".join(blamed) or source
        raise UserError(f"{source}: {'; '.join(map(_sentence, problems))}.", "set" if blamed else None) from None


def _concerns(change: str, problem: Any) -> bool:
    """Whether a change set the key of a problem, or a part of it; a problem of the whole may be that of any change."""
    changed, key = change.partition("=")[0].split("."), [str(part) for part in problem["loc"]]
    return all(ours == theirs for ours, theirs in zip(changed, key, strict=False))


def _sentence(problem: Any) -> str:
    key = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "unexpected_keyword_argument":
        return f"`{key}` is not a key of a recipe{_meant(*map(str, problem['loc']))}"
    if problem["type"].startswith("missing"):
        return f"`{key}` is missing"
    reason = problem["msg"].removeprefix("Value error, ")
    return f"`{key}`: {reason}, got {problem['input']!r}" if key and not isinstance(problem["input"], dict) else reason


def _meant(*key: str) -> str:
    """The key that a misspelt one may have meant, or those that there are."""
    *group, leaf = key
    kind = {"data": Data, "backbone": Part, "method": Part, "training": Training, "validation": Validation}
    owner = kind[group[0]] if group else Recipe
    names = [field.name for field in dataclasses.fields(owner)]
    close = difflib.get_close_matches(leaf, names, n=1)
    return f" (did you mean `{'.'.join([*group, *close])}`?)" if close else f" (those are {', '.join(names)})"


def find_recipe(name_or_path: str) -> Path:
    """The file of a recipe given by path, or by its name among those that come with the package."""
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
    raise NotFoundError(
        f"There is no recipe file {name_or_path!r}, nor a bundled recipe of that name; those are: {', '.join(bundled)}."
    )


def bundled_recipes() -> list[Path]:
    """The recipes that come with the package, sorted; in a checkout those of its `recipes/` folder."""
    here = Path(__file__).parent
    installed, checkout = here / "recipes", here.parents[1] / "recipes"
    return sorted((installed if installed.is_dir() else checkout).glob("*.yaml"))


def load_recipe(name_or_path: str, changes: list[str] | None = None, method: str | None = None) -> Recipe:
    """The recipe in a YAML file with `key.sub=value` changes applied, values written as in YAML.

    With `method` another method takes the place of the recipe's, before the changes.
    """
    path = find_recipe(name_or_path)
    try:
        with path.open(encoding="utf-8") as file:
            values = yaml.safe_load(file)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a YAML file: {' '.join(str(error).split())}.") from None
    if not isinstance(values, dict):
        raise UserError(
            f"{path} needs the keys of a recipe, got {'nothing' if values is None else type(values).__name__}."
        )
    if method is None or _method_name(values) == method:
        return _with_changes(values, str(path), changes or [])
    values |= {"name": f"{values.get('name')}-{method}", "method": {"name": method, "options": {}}}
    recipe = _with_changes(values, str(path), changes or [])
    return changed(recipe, _missing_numbers_of_classes(recipe))


def _method_name(values: dict[str, Any]) -> Any:
    method = with_current_names(values).get("method")
    return method.get("name") if isinstance(method, dict) else None


def _missing_numbers_of_classes(recipe: Recipe) -> list[str]:
    """Return the change that gives a method the number of classes of its training episodes, if it has none yet."""
    option = METHODS[recipe.method.name].way_option
    missing = option is not None and option not in recipe.method.options
    return [f"method.options.{option}={recipe.training.way}"] if missing else []


def changed(recipe: Recipe, changes: list[str]) -> Recipe:
    """The recipe with `key.sub=value` changes applied."""
    return _with_changes(recipe.as_dict(), recipe.name, changes)


def _with_changes(values: dict[str, Any], source: str, changes: list[str]) -> Recipe:
    """Return the recipe in values read from the source, changed; an error names one or the other."""
    values = with_current_names(values)
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
        raise UserError(f"{change}: the value is not YAML ({' '.join(str(error).split())}).") from None

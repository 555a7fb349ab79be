"""A recipe: everything that decides the result of a training run, checked when it is built.

A recipe is a YAML file. It may extend another one, and `key.sub=value` changes it.
"""

from __future__ import annotations

import copy
import dataclasses
import difflib
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import torch
import yaml
from pydantic import BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from tapnet.backbones import BACKBONES, PRETRAINED, Backbone, ImageShape, build, make_backbone, options_of
from tapnet.data import ImageSet, load_dataset
from tapnet.data.augmentation import AUGMENTATIONS
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import NotFoundError, UserError
from tapnet.methods import METHODS, Method
from tapnet.text import did_you_mean, one_line

_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Count = Annotated[int, Field(ge=1)]
Name = Annotated[str, Field(min_length=1)]
Options = dict[str, Any]


def _as_list(value: Any) -> Any:
    return [] if value is None else [value] if isinstance(value, str) else value


@dataclass(frozen=True, config=_STRICT)
class Data:
    """Which dataset; `options` are passed to it (rotations, split seeds)."""

    name: str
    root: str | None = None
    train_split: str = "train"
    options: Options = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if own := sorted(self.options.keys() & {"name", "split", "root"}):
            raise UserError(f"the options of a dataset are rotations and one_rotation_per_class, got {', '.join(own)}")

    def images(self, split: str, root: str | None = None) -> ImageSet:
        """Return one split; `root`, if given, overrides the folder in the recipe."""
        return load_dataset(self.name, split, root or self.root, **self.options)


@dataclass(frozen=True, config=_STRICT)
class ComponentConfig:
    """A backbone or method by name, and its options."""

    name: str
    options: Options = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, config=_STRICT)
class Training:
    """Episodes and optimizer. `weight_decay` is the authors': w ← w·(1 - decay) per step, whatever the learning rate.

    A step takes the mean gradient of `meta_batch` episodes; `episodes` counts all of them. A cosine schedule falls to
    zero `cycles` times, in cycles of equal length. With `ema_decay` an exponential moving average of the weights is
    validated and saved in place of the weights. `init_from` is a checkpoint to start from, or a list of them: one for
    each branch of the backbone, or half as many, trained with `augmentation: dihedral`, which are joined by their
    transposed copies. With `divisions` the loss is the mean over so many ways to divide the images of an episode into
    support and query, the first as drawn: less noise, and the images are embedded once. With `teachers` the targets of
    the queries are the labels mixed with the mean prediction of these networks, which has the weight `teacher_weight`.
    `image_sizes` gives each of so many equal parts of the run a size of its images, for `augmentation: resized_crop`.
    `optimizer: adam` and `sgd`, with a momentum of 0.9, have PyTorch's weight decay, which adds to the gradient.
    `clip_norm` is the largest norm of the gradient of a step.
    """

    way: Annotated[int, Field(ge=2)]
    shot: Count
    query: Count
    episodes: Count
    optimizer: Literal["adamw", "adam", "sgd"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    schedule: Literal["step", "cosine"] = "step"
    cycles: Count = 1
    decay_every: Count = 40_000
    decay_ratio: Annotated[float, Field(gt=0, le=1)] = 0.1
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    augmentation: str = "none"
    image_sizes: list[Annotated[int, Field(ge=16)]] = dataclasses.field(default_factory=list)
    frozen_backbone: bool = False  # train the rest only, over features computed once
    init_from: Annotated[list[Name], BeforeValidator(_as_list)] = dataclasses.field(default_factory=list)
    teachers: list[Name] = dataclasses.field(default_factory=list)
    teacher_weight: Annotated[float, Field(gt=0, le=1)] = 0.5
    meta_batch: Count = 1
    divisions: Count = 1
    clip_norm: Annotated[float, Field(gt=0)] | None = None
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None  # such as 0.999, which averages over about 1000 steps

    def episode_spec(self, seed: int) -> EpisodeSpec:
        return EpisodeSpec(self.way, self.shot, self.query, self.episodes, seed)

    def image_size(self, episode: int) -> int | None:
        """Return the size of the images of an episode; `None` if it is that of the dataset."""
        return self.image_sizes[episode * len(self.image_sizes) // self.episodes] if self.image_sizes else None

    def __post_init__(self) -> None:
        if self.cycles > 1 and self.schedule != "cosine":
            raise UserError(f"training.cycles above 1 needs training.schedule=cosine, got {self.schedule}")
        if self.episodes % (self.cycles * self.meta_batch):
            raise UserError(
                "training.episodes needs to be a multiple of training.meta_batch × training.cycles = "
                f"{self.meta_batch * self.cycles}, got {self.episodes}"
            )
        if self.image_sizes and self.augmentation != "resized_crop":
            raise UserError(f"training.image_sizes needs training.augmentation=resized_crop, got {self.augmentation}")
        steps = self.episodes // self.meta_batch
        if self.ema_decay is not None and (1 - self.ema_decay) * steps < 1:
            raise UserError(
                f"training.ema_decay={self.ema_decay:g} averages over about {1 / (1 - self.ema_decay):.0f} steps, more "
                f"than the {steps} of the run: lower it, set it to null, or raise training.episodes"
            )


@dataclass(frozen=True, config=_STRICT)
class Validation:
    """How validation classes choose the model: `every` so many training episodes, always on the same episodes."""

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
    """All parts of a run. `seed` decides initialization, episodes, dropout and augmentation."""

    name: str
    data: Data
    backbone: ComponentConfig
    method: ComponentConfig
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
        ways = self.method.options.get(option) if option else None
        if ways is not None and not self.validation.way <= self.training.way == ways:
            raise UserError(
                f"training.way and method.options.{option} need to be equal, and validation.way no larger, got "
                f"{self.training.way}, {ways} and {self.validation.way}"
            )
        if problem := self._combination_problem(self.training):
            raise UserError(problem)

    def _combination_problem(self, training: Training) -> str:
        """Return what cannot be combined in training, or nothing."""
        name, method = self.method.name, METHODS[self.method.name]
        if (training.augmentation == "window" or training.image_sizes) and not method.takes_windows:
            methods = ", ".join(name for name, method in METHODS.items() if method.takes_windows)
            key = "image_sizes" if training.image_sizes else "augmentation=window"
            return f"training.{key} is for the method {methods}, got {name}"
        needed = ["training.divisions=1"] if training.divisions > 1 else []
        needed += ["training.teachers=[]"] if training.teachers else []
        if needed and method.loss is not Method.loss:
            return f"{name} has a loss of its own, which needs {' and '.join(needed)}"
        if not training.frozen_backbone:
            return ""
        if self.backbone.name not in PRETRAINED:
            return f"a frozen backbone needs to be pretrained: {' or '.join(PRETRAINED)}, got {self.backbone.name}"
        if training.augmentation != "none":
            once = "the features of a frozen backbone are computed once per image"
            return f"{once}, so training.augmentation needs to be none, got {training.augmentation}"
        if training.teachers:
            remedy = "set training.teachers=[] or training.frozen_backbone=false"
            return f"a frozen backbone trains on features, and teachers need images: {remedy}"
        if training.init_from:
            remedy = f"leave out training.init_from, got {', '.join(training.init_from)}"
            return f"over a frozen backbone training starts from random parameters: {remedy}"
        return ""

    def build(self, image_shape: ImageShape) -> Method:
        """Return the method with fresh parameters, for images of this shape (channels, height, width)."""
        return self.build_method(make_backbone(self.backbone.name, image_shape, **self.backbone.options))

    def build_on_meta(self, image_shape: ImageShape) -> Method:
        """Return the method on the meta device, as shapes without values; a pretrained backbone keeps its values."""
        with nullcontext() if self.backbone.name in PRETRAINED else torch.device("meta"):
            return self.build(image_shape)

    def build_method(self, backbone: Backbone) -> Method:
        """Return the method with fresh parameters over this backbone."""
        return build(f"Method {self.method.name!r}", METHODS[self.method.name], backbone, self.method.options)

    def with_num_classes(self, count: int) -> Recipe:
        """Return the recipe with the number of training classes set, if its method takes it and has none yet."""
        if "num_classes" not in options_of(METHODS[self.method.name]) or "num_classes" in self.method.options:
            return self
        options = self.method.options | {"num_classes": count}
        return dataclasses.replace(self, method=dataclasses.replace(self.method, options=options))

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


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
    raise NotFoundError(
        f"There is no recipe file {name_or_path!r} and no bundled recipe of that name"
        f"{did_you_mean(name_or_path, bundled)}; `tapnet recipes` lists them."
    )


def load_recipe(name_or_path: str, changes: Sequence[str] = (), method: str | None = None) -> Recipe:
    """Return the recipe in a YAML file with `key.sub=value` changes applied, values written as in YAML.

    With `method` another method replaces that of the recipe, before the changes.
    """
    path = find_recipe(name_or_path)
    values = _read_values(path)
    own = values.get("method")
    is_other = method is not None and not (isinstance(own, dict) and own.get("name") == method)
    if is_other:
        values |= {"name": f"{values.get('name')}-{method}", "method": {"name": method, "options": {}}}
    return _with_changes(values, str(path), changes, is_other)


def _read_values(path: Path, extending: Sequence[Path] = ()) -> dict[str, Any]:
    """Return the keys of a YAML file, added to those of the recipe that it extends, if there is one."""
    if path in extending:
        raise UserError(f"{path} extends itself: {' → '.join(file.stem for file in [*extending, path])}.")
    try:
        values = copy.deepcopy(_parsed(path.read_text(encoding="utf-8")))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not a YAML file: {one_line(error)}.") from None
    if not isinstance(values, dict):
        kind = "nothing" if values is None else type(values).__name__
        raise UserError(f"{path} needs the keys of a recipe, got {kind}.")
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
        if isinstance(group, dict) and isinstance(value, dict) and value.get("name") in (None, group.get("name")):
            value = _merged(group, value)
        merged[key] = value
    return merged


@cache
def _parsed(text: str) -> Any:
    """Return the values of a YAML text; the tables of the paper load the same recipes many times."""
    return yaml.safe_load(text)


def changed(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """Return the recipe with `key.sub=value` changes applied."""
    return _with_changes(recipe.as_dict(), recipe.name, changes)


def _with_changes(values: dict[str, Any], source: str, changes: Sequence[str], other_method: bool = False) -> Recipe:
    for change in changes:
        _apply(values, change)
    if other_method or any(change.startswith("training.way=") for change in changes):
        _set_way(values, changes)
    return recipe_from(values, source, changes)


def _set_way(values: dict[str, Any], changes: Sequence[str]) -> None:
    """Set the option of the method that equals the number of classes of a training episode, unless a change did."""
    method, training = values.get("method"), values.get("training")
    if isinstance(method, dict) and isinstance(training, dict) and method.get("name") in list(METHODS):
        option, options = METHODS[method["name"]].way_option, method.get("options", {})
        keys = {change.partition("=")[0] for change in changes}
        is_named = f"method.options.{option}" in keys or (keys & {"method", "method.options"} and option in options)
        if option and not is_named and isinstance(options, dict):
            method["options"] = options | {option: training.get("way")}


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
        return TypeAdapter(Recipe).validate_python(values)
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
    key, (*group, leaf) = ".".join(location), location or [""]
    if problem["type"] == "unexpected_keyword_argument":
        kind = get_type_hints(Recipe)[group[0]] if group else Recipe
        names = [field.name for field in dataclasses.fields(kind)]
        close = difflib.get_close_matches(leaf, names, n=1)
        hint = f"did you mean `{'.'.join([*group, *close])}`?" if close else f"valid keys: {', '.join(names)}"
        return f"`{key}` is not a key of a recipe ({hint})"
    if problem["type"].startswith("missing"):
        return f"`{key}` is missing"
    reason = problem["msg"].removeprefix("Value error, ")
    return f"`{key}`: {reason}, got {problem['input']!r}" if key and not isinstance(problem["input"], dict) else reason

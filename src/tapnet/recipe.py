"""A recipe: everything that decides the result of a training run, checked when it is built."""

from __future__ import annotations

import dataclasses
from contextlib import nullcontext
from typing import Annotated, Any, Literal

import torch
from pydantic import BeforeValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass

from tapnet.backbones import BACKBONES, PRETRAINED, Backbone, ImageShape, make_backbone
from tapnet.data import ImageSet, load_dataset
from tapnet.data.augmentation import AUGMENTATIONS
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import UserError
from tapnet.methods import METHODS, Method
from tapnet.registry import build


def network_list(init_from: str | list[str] | None) -> list[str]:
    """Return the checkpoints of `init_from`, which may be one, several or none."""
    return [init_from] if isinstance(init_from, str) else init_from or []


def _check_networks(value: Any) -> Any:
    names = value if isinstance(value, list) else [value]
    if value is not None and not (names and all(isinstance(name, str) and name for name in names)):
        raise UserError("expected the name of a checkpoint, or a list of them")
    return value


_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Count = Annotated[int, Field(ge=1)]
Options = dict[str, Any]


@dataclass(frozen=True, config=_STRICT)
class Data:
    """Which dataset; `options` are passed to it (rotations, split seeds)."""

    name: str
    root: str | None = None
    train_split: str = "train"
    options: Options = dataclasses.field(default_factory=dict)

    def images(self, split: str, root: str | None = None) -> ImageSet:
        """Return one split; `root`, if given, overrides the folder in the recipe."""
        return load_dataset(self.name, split, root or self.root, **self.options)


@dataclass(frozen=True, config=_STRICT)
class Part:
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
    `optimizer: sgd` has a momentum of 0.9 and PyTorch's weight decay, which the learning rate multiplies.
    """

    way: Annotated[int, Field(ge=2)]
    shot: Count
    query: Count
    episodes: Count
    optimizer: Literal["adamw", "sgd"] = "adamw"
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    schedule: Literal["step", "cosine"] = "step"
    cycles: Count = 1
    decay_every: Count = 40_000
    decay_ratio: Annotated[float, Field(gt=0, le=1)] = 0.1
    weight_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    augmentation: str = "none"
    image_sizes: list[Annotated[int, Field(ge=16)]] = dataclasses.field(default_factory=list)
    frozen_backbone: bool = False  # train the rest only, over features computed once
    init_from: Annotated[str | list[str] | None, BeforeValidator(_check_networks)] = None
    teachers: list[Annotated[str, Field(min_length=1)]] = dataclasses.field(default_factory=list)
    teacher_weight: Annotated[float, Field(gt=0, le=1)] = 0.5
    meta_batch: Count = 1
    divisions: Count = 1
    ema_decay: Annotated[float, Field(gt=0, lt=1)] | None = None  # such as 0.999, which averages over about 1000 steps

    def episode_spec(self, seed: int) -> EpisodeSpec:
        return EpisodeSpec(self.way, self.shot, self.query, self.episodes, seed)

    def image_size(self, episode: int) -> int | None:
        """Return the size of the images of an episode; `None` if it is that of the dataset."""
        return self.image_sizes[episode * len(self.image_sizes) // self.episodes] if self.image_sizes else None

    @property
    def initial_networks(self) -> list[str]:
        """The checkpoints of `init_from`; empty if training starts from random weights."""
        return network_list(self.init_from)

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
        ways = self.method.options.get(option) if option else None
        if ways is not None and not self.validation.way <= self.training.way == ways:
            raise UserError(
                f"training.way and method.options.{option} need to be equal, and validation.way no larger, got "
                f"{self.training.way}, {ways} and {self.validation.way}"
            )
        smaller = self.training.augmentation == "window" or self.training.image_sizes
        if smaller and not METHODS[self.method.name].takes_windows:
            methods = ", ".join(name for name, method in METHODS.items() if method.takes_windows)
            key = "image_sizes" if self.training.image_sizes else "augmentation=window"
            raise UserError(f"training.{key} is for the method {methods}, got {self.method.name}")
        if METHODS[self.method.name].loss is not Method.loss:
            needed = ["training.divisions=1"] if self.training.divisions > 1 else []
            needed += ["training.teachers=[]"] if self.training.teachers else []
            if needed:
                raise UserError(f"{self.method.name} has a loss of its own, which needs {' and '.join(needed)}")
        if self.training.frozen_backbone:
            self._check_frozen_backbone()

    def _check_frozen_backbone(self) -> None:
        if self.backbone.name not in PRETRAINED:
            raise UserError(
                f"a frozen backbone needs to be pretrained: {' or '.join(PRETRAINED)}, got {self.backbone.name}"
            )
        if self.training.augmentation != "none":
            raise UserError(
                "the features of a frozen backbone are computed once per image, so training.augmentation needs to be "
                f"none, got {self.training.augmentation}"
            )
        if self.training.teachers:
            raise UserError(
                "a frozen backbone trains on features, and teachers need images: set training.teachers=[] or "
                "training.frozen_backbone=false"
            )
        if self.training.initial_networks:
            raise UserError(
                "over a frozen backbone training starts from random parameters: leave out training.init_from, got "
                f"{', '.join(self.training.initial_networks)}"
            )

    def build(self, image_shape: ImageShape) -> Method:
        """Return the method with fresh parameters, for images of this shape (channels, height, width)."""
        return self.over(make_backbone(self.backbone.name, image_shape, **self.backbone.options))

    def outline(self, image_shape: ImageShape) -> Method:
        """Return the method on the meta device, as shapes without values; a pretrained backbone keeps its values."""
        with nullcontext() if self.backbone.name in PRETRAINED else torch.device("meta"):
            return self.build(image_shape)

    def over(self, backbone: Backbone) -> Method:
        """Return the method with fresh parameters over this backbone."""
        return build(f"Method {self.method.name!r}", METHODS[self.method.name], backbone, self.method.options)

    def with_num_classes(self, count: int) -> Recipe:
        """Return the recipe with the number of training classes set, if its method takes it and has none yet."""
        if not METHODS[self.method.name].auxiliary_classes or "num_classes" in self.method.options:
            return self
        options = self.method.options | {"num_classes": count}
        return dataclasses.replace(self, method=dataclasses.replace(self.method, options=options))

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

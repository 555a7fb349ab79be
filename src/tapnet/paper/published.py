"""The tables of the paper and of the rivals' publications, and the recipe of each of our cells, from published.yaml."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import TypeAdapter

from tapnet.backbones import ImageShape

Modules = tuple[str, ...]  # names of modules


@dataclass(frozen=True)
class PublishedTask:
    """The task of a column."""

    heading: str
    dataset: str
    classes: int  # of the test split
    way: int
    shot: int
    query: int
    episodes: int


@dataclass(frozen=True)
class Cell:
    """A TapNet result of the paper, its recipe, and what ours is by other recipes; RESULTS.md has them all."""

    name: str  # of the classes
    network: str
    task: PublishedTask
    published: str
    recipe: str
    ours: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class PublishedRow:
    """The published accuracies of a method in percent, and the recipe of each of our cells, if there is one."""

    published: tuple[str, ...] = ()
    recipes: tuple[str | None, ...] = ()


@dataclass(frozen=True)
class AccuracyTable:
    """A table: one task per column. `own_recipes` are further rows of ours; a table of rivals has `image_shape`."""

    title: str
    columns: tuple[PublishedTask, ...]
    rows: dict[str, PublishedRow]
    own_recipes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    image_shape: ImageShape | None = None  # with which the parameters of our networks are counted


@dataclass(frozen=True)
class ParameterCount:
    """Published numbers of parameters, and our network to compare; `layers` and `parts` are groups of its modules."""

    published: tuple[str, str, str]  # feature extractor, further layers, further parts
    method: str
    backbone: str
    options: dict[str, Any] = field(default_factory=dict)
    layers: tuple[Modules, ...] = ()
    parts: tuple[Modules, ...] = ()
    note: str = ""


_VALUES = yaml.safe_load((Path(__file__).parent / "published.yaml").read_text(encoding="utf-8"))

CELLS = TypeAdapter(tuple[Cell, ...]).validate_python(_VALUES["cells"])
ACCURACIES = TypeAdapter(dict[str, AccuracyTable]).validate_python(_VALUES["accuracies"])
RIVALS = TypeAdapter(dict[str, AccuracyTable]).validate_python(_VALUES["rivals"])
HYPERPARAMETERS: dict[str, list[str]] = _VALUES["hyperparameters"]
ABLATION_TABLES: dict[str, dict[str, Any]] = _VALUES["ablations"]  # title; rows of setting, ablation, variant, accuracy
PARAMETERS = TypeAdapter(dict[str, ParameterCount]).validate_python(_VALUES["parameters"])

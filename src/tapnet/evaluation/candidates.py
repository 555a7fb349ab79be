"""Checkpoints opened for evaluation, and which of the evaluated classes their networks have seen before.

Classes are compared whatever the name of the packed dataset: its manifest says which dataset it was made from, and the
ImageNet subsets name their classes by the same WordNet ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tapnet.checkpoint import Header, Lineage, read_checkpoint
from tapnet.data import DATASETS, ImageSet
from tapnet.data.packed import UnknownSplitError, is_packed, read_manifest
from tapnet.errors import UserError
from tapnet.evaluation.evaluator import Evaluator
from tapnet.hardware import resolve_device
from tapnet.methods import Method
from tapnet.paths import data_root
from tapnet.recipe import Data, Recipe
from tapnet.text import pluralize

_NO_LINEAGE = Lineage()
_WORDNET_ID = re.compile(r"n\d{8}")
IMAGENET = ("mini-imagenet", "tiered-imagenet", "tiny-imagenet-tiered")


@dataclass(frozen=True)
class EvaluationData:
    """Which images to evaluate on; `None` means as in the training of the checkpoint."""

    split: str = "test"
    dataset: str | None = None
    root: str | None = None
    rotations: int | None = None

    def load(self, data: Data) -> ImageSet:
        """Return the images, for a network that was trained on `data`."""
        rotations = {} if self.rotations is None else {"rotations": self.rotations}
        if self.dataset not in (None, data.name):
            data = replace(data, name=self.dataset, root=None, options={})
        return replace(data, options=data.options | rotations).images(self.split, self.root)


@dataclass(frozen=True)
class ClassOverlap:
    """How many of the evaluated classes the network has seen; `None` if that is not known on this machine."""

    classes: int  # evaluated
    trained_on: int | None
    validated_on: int | None  # for the choice of the checkpoint
    pretrained_on: bool  # whether the backbone was pretrained on classes of this dataset

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for a JSON file, in which `allow_overlap` stands for the pretrained backbone."""
        counts = {"trained_on": self.trained_on, "validated_on": self.validated_on}
        return counts | {"allow_overlap": self.pretrained_on}

    def notes(self) -> list[str]:
        """Return a sentence for each kind of overlap."""
        classes, notes = pluralize(self.classes, "class"), []
        if self.pretrained_on:
            notes.append("Its backbone was pretrained on ImageNet, which these classes are from.")
        if self.trained_on:
            notes.append(f"It was trained on {self.trained_on} of these {classes}.")
        if self.validated_on:
            notes.append(f"Its checkpoint was chosen on {self.validated_on} of these {classes}.")
        return [*notes, "The accuracy is not one on unseen classes."] if notes else []


@dataclass(frozen=True, eq=False)
class Candidate:
    """A checkpoint with its evaluator."""

    name: str
    header: Header
    evaluator: Evaluator
    overlap: ClassOverlap
    training_seconds: float | None = None

    @staticmethod
    def open(
        checkpoint: str,
        images: EvaluationData,
        device: str = "cpu",
        precision: str = "float32",
        cache: Path | None = None,
        allow_overlap: bool = False,
    ) -> Candidate:
        """Return a checkpoint, ready for evaluation on these images.

        `cache` is a folder for features. Raise UserError if the checkpoint takes images of another size or, unless
        `allow_overlap`, if its backbone was pretrained on their classes.
        """
        loaded = read_checkpoint(checkpoint)
        header, method = loaded.header, loaded.method()
        dataset, root = images.dataset or header.recipe.data.name, images.root or header.recipe.data.root
        if pretrained_on(method, dataset, root, header.lineage) and not allow_overlap:
            raise UserError(
                f"{checkpoint} was pretrained on ImageNet, whose classes {dataset} is made of, so the result would not "
                "be on unseen classes: allow the overlap to measure it all the same, and the result says so.",
                parameter="allow_overlap",
            )
        image_set = images.load(header.recipe.data)
        if image_set.image_shape != header.image_shape:
            expected, got = (
                f"{height}×{width} with {pluralize(channels, 'channel')}"
                for channels, height, width in (header.image_shape, image_set.image_shape)
            )
            raise UserError(
                f"{checkpoint} takes images of {expected}, those of {image_set.name} are {got}: prepare them in that "
                "size, or choose another dataset.",
                parameter="dataset",
            )
        overlap = class_overlap(header.recipe, method, image_set, root, header.lineage)
        evaluator = Evaluator(method.to(resolve_device(device)), image_set, precision, cache)
        return Candidate(checkpoint, header, evaluator, overlap)


def class_overlap(
    recipe: Recipe, method: Method, images: ImageSet, root: str | None = None, lineage: Lineage = _NO_LINEAGE
) -> ClassOverlap:
    """Return which classes of `images`, prepared in `root`, a network of this recipe has seen before.

    What the networks have seen that it was initialized or distilled from, it has seen, too.
    """
    root = root or recipe.data.root
    evaluated = _identities(images.name, root, images.names)
    stages = [(recipe.data, recipe.validation.split)]
    stages += [(ancestor.data, ancestor.validation_split) for ancestor in lineage.networks()]
    trained = _shared(evaluated, [(data, data.train_split) for data, _ in stages])
    validated = _shared(evaluated, stages)
    return ClassOverlap(len(images.names), trained, validated, pretrained_on(method, images.name, root, lineage))


def pretrained_on(method: Method, dataset: str, root: str | None = None, lineage: Lineage = _NO_LINEAGE) -> bool:
    """Return whether the backbone, or that of an ancestor, was pretrained on classes of a packed dataset."""
    if not (method.backbone.pretrained or any(ancestor.pretrained for ancestor in lineage.ancestors)):
        return False
    folder = data_root(root) / dataset
    names = read_manifest(folder).classes if is_packed(folder) else ()
    return source_dataset(dataset, root) in IMAGENET or any(map(_WORDNET_ID.fullmatch, names))


def source_dataset(name: str, root: str | None = None) -> str:
    """Return the entry of DATASETS that a packed dataset was made from, whatever name it was given."""
    folder = data_root(root) / name
    return read_manifest(folder).dataset if is_packed(folder) else name


def _identities(dataset: str, root: str | None, names: Iterable[str]) -> set[tuple[str, str]]:
    source = source_dataset(dataset, root)
    return {("imagenet" if source in IMAGENET or _WORDNET_ID.fullmatch(name) else source, name) for name in names}


def _shared(evaluated: set[tuple[str, str]], seen: Iterable[tuple[Data, str]]) -> int | None:
    """Return how many of the evaluated classes are in these splits; `None` if one is not known and none is shared."""
    known = [_classes(data, split) for data, split in seen]
    count = len(evaluated & set().union(*(classes for classes in known if classes)))
    return None if not count and None in known else count


def _classes(data: Data, split: str) -> set[tuple[str, str]] | None:
    """Return the classes of a split, from the packed dataset or else from its published list."""
    try:
        return _identities(data.name, data.root, data.images(split).names)
    except UnknownSplitError:
        return set()
    except (OSError, ValueError):
        listed = DATASETS[data.name].splits if data.name in DATASETS else {}
        parts = ("train", "val") if split == "trainval" else (split,)
        names = (name for part in parts for name in listed[part])
        return _identities(data.name, data.root, names) if {*parts} <= {*listed} else None


def without_seed(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe as a dictionary without its name, its seed, and the paths of its data and other networks."""
    training = recipe["training"]
    others = {key: len(training[key]) for key in ("init_from", "teachers")}
    data = recipe["data"] | {"root": None}
    return {**recipe, "name": None, "seed": None, "data": data, "training": training | others}


def check_seeds(checkpoints: Sequence[str]) -> None:
    """Raise UserError unless these runs share a recipe and have different seeds."""
    recipes = [read_checkpoint(checkpoint).header.recipe for checkpoint in checkpoints]
    if len(recipes) < 2:
        raise UserError(f"The spread over seeds needs at least 2 runs, got {len(recipes)}.", parameter="seeds")
    base = without_seed(recipes[0].as_dict())
    for name, recipe in zip(checkpoints, recipes, strict=True):
        if without_seed(recipe.as_dict()) != base:
            raise UserError(f"Expected runs that differ in seed only, {name} has another recipe.", parameter="seeds")
    seeds = [recipe.seed for recipe in recipes]
    if len({*seeds}) < len(seeds):
        raise UserError(f"Expected one run per seed, got the seeds {', '.join(map(str, seeds))}.", parameter="seeds")

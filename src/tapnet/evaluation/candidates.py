"""Checkpoints opened for evaluation: their images checked, and the classes counted that they have seen before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tapnet.backbones import ImageShape
from tapnet.checkpoint import Header, read_checkpoint
from tapnet.data import ImageSet
from tapnet.errors import UserError
from tapnet.evaluation.class_overlap import ClassOverlap, class_overlap, pretrained_on
from tapnet.evaluation.evaluator import Evaluator
from tapnet.hardware import resolve_device
from tapnet.recipe import Data
from tapnet.text import pluralize


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
        recipe, method = loaded.header.recipe, loaded.method()
        root = images.root or recipe.data.root
        dataset = images.dataset or recipe.data.name
        if pretrained_on(method, dataset, root, loaded.header.ancestors) and not allow_overlap:
            raise UserError(
                f"{checkpoint} was pretrained on ImageNet, whose classes {dataset} is made of, so the result would not "
                "be on unseen classes: allow the overlap to measure it all the same, and the result says so.",
                parameter="allow_overlap",
            )
        found = images.load(recipe.data)
        _check_image_size(checkpoint, loaded.header.image_shape, found)
        overlap = class_overlap(recipe, method, found, root, loaded.header.ancestors)
        return Candidate(
            checkpoint, loaded.header, Evaluator(method.to(resolve_device(device)), found, precision, cache), overlap
        )


def without_seed(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe as a dictionary without its name, its seed, and the paths of its data and other networks."""
    training = recipe["training"]
    others = {
        "init_from": len(training["init_from"]),
        "teachers": len(training.get("teachers", [])),
    }
    return {
        **recipe,
        "name": None,
        "seed": None,
        "data": recipe["data"] | {"root": None},
        "training": training | others,
    }


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


def _check_image_size(checkpoint: str, needed: ImageShape, images: ImageSet) -> None:
    if images.image_shape != needed:
        expected, found = (
            f"{height}×{width} with {pluralize(channels, 'channel')}"
            for channels, height, width in (needed, images.image_shape)
        )
        raise UserError(
            f"{checkpoint} takes images of {expected}, those of {images.name} are {found}: prepare them in that size, "
            "or choose another dataset.",
            parameter="dataset",
        )

"""Which of the evaluated classes a network has seen before: in pretraining, training or validation.

Classes are compared whatever the name of the packed dataset: its manifest says which dataset it was made from, and the
ImageNet subsets name their classes by the same WordNet ids.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tapnet.data import DATASETS, ImageSet
from tapnet.data.packed import UnknownSplitError, data_root, is_packed, read_manifest
from tapnet.methods import Method
from tapnet.recipe import Data, Recipe
from tapnet.wording import pluralize

IMAGENET = ("mini-imagenet", "tiered-imagenet", "tiny-imagenet-tiered")


@dataclass(frozen=True)
class ClassOverlap:
    """How many of the evaluated classes the network has seen; `None` if that is not known on this machine."""

    classes: int  # evaluated
    trained_on: int | None
    validated_on: int | None  # for the choice of the checkpoint
    pretrained_on: bool  # whether the backbone was pretrained on classes of this dataset

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for a JSON file, in which `allow_overlap` stands for the pretrained backbone."""
        return {
            "trained_on": self.trained_on,
            "validated_on": self.validated_on,
            "allow_overlap": self.pretrained_on,
        }

    def notes(self) -> list[str]:
        """Return a sentence for each kind of overlap."""
        notes = []
        if self.pretrained_on:
            notes.append("Its backbone was pretrained on ImageNet, which these classes are from.")
        if self.trained_on:
            notes.append(f"It was trained on {self.trained_on} of these {pluralize(self.classes, 'class')}.")
        if self.validated_on:
            notes.append(
                f"Its checkpoint was chosen on {self.validated_on} of these {pluralize(self.classes, 'class')}."
            )
        if notes:
            notes.append("The accuracy is not one on unseen classes.")
        return notes


def class_overlap(recipe: Recipe, method: Method, images: ImageSet, root: str | None = None) -> ClassOverlap:
    """Return which classes of `images`, prepared in `root`, a network of this recipe has seen before."""
    root = root or recipe.data.root
    family = _family(images.name, root)
    evaluated = {(family, name) for name in images.names}

    def shared(split: str) -> int | None:
        known = _classes(recipe.data, split)
        return None if known is None else len(evaluated & known)

    trained, validated = shared(recipe.data.train_split), shared(recipe.validation.split)
    return ClassOverlap(len(images.names), trained, validated, pretrained_on(method, images.name, root))


def pretrained_on(method: Method, dataset: str, root: str | None = None) -> bool:
    """Return whether the backbone was pretrained on classes of a packed dataset."""
    return method.backbone.pretrained and source_dataset(dataset, root) in IMAGENET


def source_dataset(name: str, root: str | None = None) -> str:
    """Return the entry of DATASETS that a packed dataset was made from, whatever name it was given."""
    folder = data_root(root) / name
    return read_manifest(folder).dataset if is_packed(folder) else name


def _family(name: str, root: str | None) -> str:
    dataset = source_dataset(name, root)
    return "imagenet" if dataset in IMAGENET else dataset


def _classes(data: Data, split: str) -> set[tuple[str, str]] | None:
    """Return the classes of a split, from the packed dataset or else from its published list."""
    family = _family(data.name, data.root)
    try:
        return {(family, name) for name in data.images(split).names}
    except UnknownSplitError:
        return set()
    except (OSError, ValueError):
        listed = DATASETS[data.name].splits if data.name in DATASETS else {}
        parts = ("train", "val") if split == "trainval" else (split,)
        return {(family, name) for part in parts for name in listed[part]} if {*parts} <= {*listed} else None

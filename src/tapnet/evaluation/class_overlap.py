"""Which of the evaluated classes a network has seen before: in pretraining, training or validation.

Classes are compared whatever the name of the packed dataset: its manifest says which dataset it was made from, and the
ImageNet subsets name their classes by the same WordNet ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tapnet.checkpoint import Ancestor
from tapnet.data import DATASETS, ImageSet
from tapnet.data.packed import UnknownSplitError, is_packed, read_manifest
from tapnet.methods import Method
from tapnet.paths import data_root
from tapnet.recipe import Data, Recipe
from tapnet.text import pluralize

_WORDNET_ID = re.compile(r"n\d{8}")
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


def class_overlap(
    recipe: Recipe, method: Method, images: ImageSet, root: str | None = None, ancestors: Sequence[Ancestor] = ()
) -> ClassOverlap:
    """Return which classes of `images`, prepared in `root`, a network of this recipe has seen before.

    What the networks have seen that it was initialized or distilled from, it has seen, too.
    """
    root = root or recipe.data.root
    evaluated = _identities(images.name, root, images.names)
    stages = [Ancestor(recipe.data, recipe.validation.split), *ancestors]
    trained = _shared(evaluated, [(stage.data, stage.data.train_split) for stage in stages])
    validated = _shared(evaluated, [(stage.data, stage.validation_split) for stage in stages])
    return ClassOverlap(len(images.names), trained, validated, pretrained_on(method, images.name, root, ancestors))


def pretrained_on(method: Method, dataset: str, root: str | None = None, ancestors: Sequence[Ancestor] = ()) -> bool:
    """Return whether the backbone, or that of an ancestor, was pretrained on classes of a packed dataset."""
    if not (method.backbone.pretrained or any(ancestor.pretrained for ancestor in ancestors)):
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

"""A task: what fitting a handful of labelled pictures leaves.

It keeps the features of its examples, so that classes can be added or taken away without the pictures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax

from tapnet.heads import Adapted, HeadOptions, adapt
from tapnet.inference.networks import Foundation, networks_supporting


@dataclass(frozen=True)
class Examples:
    """Labelled pictures as a task keeps them; `labels` count the task's classes."""

    features: NDArray[np.float32]  # (n, dim)
    labels: NDArray[np.int64]  # (n,)
    hashes: tuple[str, ...]  # sha-256 of each picture
    thumbnails: tuple[bytes, ...]  # small JPEGs

    def __len__(self) -> int:
        return len(self.labels)

    def kept(self, chosen: NDArray[np.bool_]) -> Examples:
        rows = np.flatnonzero(chosen)
        hashes, thumbnails = tuple(self.hashes[i] for i in rows), tuple(self.thumbnails[i] for i in rows)
        return Examples(self.features[chosen], self.labels[chosen], hashes, thumbnails)


@dataclass(frozen=True)
class Settings:
    """What was asked of `fit`."""

    head: str = "tapnet"
    selection: str = "optimal"
    projection_dim: int | None = None  # as the network has it


@dataclass(frozen=True)
class Task:
    """A fitted classifier of pictures: class names, head, examples, and which network it belongs to."""

    classes: tuple[str, ...]
    examples: Examples
    adapted: Adapted
    temperature: float
    settings: Settings
    network: str
    network_sha256: str

    def probabilities(self, features: NDArray[np.floating]) -> NDArray[np.float64]:
        """(n, way), each row summing to 1."""
        scaled: NDArray[np.float64] = softmax(self.adapted.scores(features) / self.temperature, axis=1)
        return scaled

    def shots(self) -> list[int]:
        """The number of examples of each class."""
        return [int(count) for count in np.bincount(self.examples.labels, minlength=len(self.classes))]

    def check_network(self, foundation: Foundation) -> None:
        """Nothing, or an error that says which network the task belongs to."""
        if foundation.sha256 != self.network_sha256:
            raise ValueError(
                f"The task was fitted with the network {self.network!r} (sha-256 {self.network_sha256[:12]}…), this is "
                f"{foundation.name!r} (sha-256 {foundation.sha256[:12]}…): give the first with --network, or fit again."
            )


def fit_task(classes: Sequence[str], examples: Examples, foundation: Foundation, settings: Settings) -> Task:
    """The head fitted to the examples, with the temperature that the network has for such a task."""
    way = len(classes)
    shots = np.bincount(examples.labels, minlength=way).tolist()
    temperature = foundation.calibration.temperature(settings.head, shots)
    if settings.head == "tapnet":
        _check_too_many(way, foundation)
        if settings.projection_dim is None:
            settings = replace(settings, projection_dim=foundation.projection_dim)
        full = examples.features.shape[1] - way
        temperature *= (settings.projection_dim or full) / (
            foundation.projection_dim or full
        )  # as squared distances do
    adapted = adapt_examples(examples, way, foundation, settings)
    return Task(tuple(classes), examples, adapted, temperature, settings, foundation.name, foundation.sha256)


def _check_too_many(way: int, foundation: Foundation) -> None:
    limit = way if foundation.references is None else len(foundation.references)
    if way > limit:
        further = " or ".join(name for name in networks_supporting(way) if name != foundation.name)
        raise ValueError(
            f"{way} classes are more than the {limit} references of the network {foundation.name!r}: "
            + (f"use the network {further}, or " if further else "no bundled network reaches further; use ")
            + 'head="centroid", or train with more ways.'
        )


def adapt_examples(examples: Examples, way: int, foundation: Foundation, settings: Settings) -> Adapted:
    options = HeadOptions(foundation.references, settings.selection, settings.projection_dim, foundation.reference_bias)
    features, labels = torch.from_numpy(examples.features), torch.from_numpy(examples.labels)
    return adapt(settings.head, features, labels, way, options)


def with_examples(task: Task, names: Sequence[str], more: Examples, foundation: Foundation) -> Task:
    """The task with further examples, `more.labels` counting `names`; new names become classes.

    A picture that its class has already is passed over; one that another class has is refused.
    """
    task.check_network(foundation)
    classes = (*task.classes, *dict.fromkeys(name for name in names if name not in task.classes))
    check_names_differ(classes)
    labels = np.array([classes.index(names[label]) for label in more.labels], dtype=np.int64)
    owner = dict(zip(task.examples.hashes, task.examples.labels, strict=True))
    for digest, label in zip(more.hashes, labels, strict=True):
        if owner.get(digest, label) != label:
            raise ValueError(
                f"A picture given for {classes[label]!r} is already an example of {classes[owner[digest]]!r} (sha-256 "
                f"{digest[:12]}…): remove it there first."
            )
    fresh = np.array([digest not in owner for digest in more.hashes], dtype=bool)
    added = replace(more, labels=labels).kept(fresh)
    return fit_task(classes, _joined(task.examples, added), foundation, task.settings)


def without(task: Task, gone: Callable[[int, str], bool], foundation: Foundation) -> Task:
    """The task without the examples for which `gone(label, sha-256)`; a class without examples goes too."""
    task.check_network(foundation)
    labelled = zip(task.examples.labels, task.examples.hashes, strict=True)
    left = task.examples.kept(np.array([not gone(int(label), digest) for label, digest in labelled], dtype=bool))
    stay = np.unique(left.labels)
    if len(stay) < 2:
        raise ValueError(f"A task needs at least 2 classes, this would leave {len(stay)}: delete the file instead.")
    left = replace(left, labels=np.searchsorted(stay, left.labels))
    return fit_task([task.classes[label] for label in stay], left, foundation, task.settings)


def leave_one_out(task: Task, foundation: Foundation) -> float | None:
    """The share of examples that a head fitted to all others gets right; `None` where a class has one example only."""
    if min(task.shots()) < 2:
        return None
    hits = 0
    for index in range(len(task.examples)):
        others = task.examples.kept(np.arange(len(task.examples)) != index)
        adapted = adapt_examples(others, len(task.classes), foundation, task.settings)
        guess = adapted.scores(task.examples.features[index : index + 1]).argmax()
        hits += int(guess == task.examples.labels[index])
    return hits / len(task.examples)


def check_names_differ(classes: Sequence[str]) -> None:
    """Nothing, or an error that names two classes which differ only in upper and lower case."""
    counts = Counter(name.casefold() for name in classes)
    alike = [name for name in classes if counts[name.casefold()] > 1]
    if alike:
        raise ValueError(f"The classes {' and '.join(map(repr, alike))} have the same name in other case: rename one.")


def _joined(first: Examples, second: Examples) -> Examples:
    """Both, class after class, so that adding in steps and fitting at once give one order."""
    labels = np.concatenate([first.labels, second.labels])
    order = np.argsort(labels, kind="stable")
    hashes, thumbnails = first.hashes + second.hashes, first.thumbnails + second.thumbnails
    return Examples(
        np.concatenate([first.features, second.features])[order],
        labels[order],
        tuple(hashes[i] for i in order),
        tuple(thumbnails[i] for i in order),
    )

"""A task: what fitting a handful of labelled pictures leaves.

It keeps the features of its examples, so that classes can be added or taken away without the pictures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import binomtest

from tapnet.errors import UserError
from tapnet.functional import NonFiniteError
from tapnet.inference.networks import EmbeddingModel, networks_supporting
from tapnet.methods import Head, LinearHead

ROUNDS = 20  # of leaving one image of every class out


@dataclass(frozen=True)
class Examples:
    """Labelled pictures as a task keeps them; `labels` count the task's classes."""

    features: NDArray[np.float32]  # (n, *feature_shape)
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
class Task:
    """A fitted classifier of images: class names, examples, method and head, and which network it belongs to."""

    classes: tuple[str, ...]
    examples: Examples
    head: Head
    temperature: float
    method: str
    options: Mapping[str, Any]  # of the method's adaptation
    network: str
    network_sha256: str

    def logits(self, features: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return scores (n, way) in float64: where the head is linear, the same for an image whatever its batch-mates."""
        linear = self.head.linear()
        if linear is None:
            return self.head.logits(torch.from_numpy(features).float()).detach().double().numpy()
        exact = LinearHead(linear.weight.double(), linear.bias.double(), linear.normalize)
        return exact.logits(torch.from_numpy(features).double()).numpy()

    def probabilities(self, features: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return (n, way), each row summing to 1; raise NonFiniteError if the features are not numbers."""
        logits = self.logits(features)
        if np.isnan(logits).any():
            raise NonFiniteError("The features of an image are not numbers: the network has diverged.")
        scaled: NDArray[np.float64] = softmax(logits / self.temperature, axis=1)
        return scaled

    def shots(self) -> list[int]:
        """Return the number of examples of each class."""
        return [int(count) for count in np.bincount(self.examples.labels, minlength=len(self.classes))]

    def check_network(self, model: EmbeddingModel) -> None:
        """Raise UserError unless this is the network that the task was fitted with."""
        if model.sha256 != self.network_sha256:
            raise UserError(
                f"The task was fitted with the network {self.network!r} (sha-256 {self.network_sha256[:12]}…), got "
                f"{model.name!r} (sha-256 {model.sha256[:12]}…): give the first with --network, or fit again."
            )


def fit_task(
    classes: Sequence[str],
    examples: Examples,
    model: EmbeddingModel,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Task:
    """Return the method of the network, or the one named, adapted to the examples, with its temperature."""
    way, name = len(classes), method or model.default_method
    if way < 2:
        raise UserError(f"A classifier needs at least 2 classes, got {way} class.")
    options = {key: value for key, value in (options or {}).items() if value is not None}
    head = adapt(examples, model, name, options)
    shots = np.bincount(examples.labels, minlength=way).tolist()
    temperature = model.calibration.temperature(name, shots) * _dimension_factor(model, options, way)
    return Task(tuple(classes), examples, head, temperature, name, options, model.name, model.sha256)


def adapt(examples: Examples, model: EmbeddingModel, method: str, options: Mapping[str, Any]) -> Head:
    """Return the head of a method for these examples; a linear one as its linear layer and no more."""
    adapted = adapted_head(examples, model, method, options)
    return adapted.linear() or adapted


def adapted_head(examples: Examples, model: EmbeddingModel, method: str, options: Mapping[str, Any]) -> Head:
    """Return the head of a method for these examples, with its projection where it has one."""
    ready = model.method_named(method, options)
    labels = torch.from_numpy(examples.labels)
    way = int(labels.max()) + 1
    if ready.max_way is not None and way > ready.max_way:
        _check_way(way, ready.max_way, model)
    with torch.set_grad_enabled(ready.gradients_at_test):
        return ready.adapt(torch.from_numpy(examples.features), labels)


def _check_way(way: int, limit: int, model: EmbeddingModel) -> None:
    further = " or ".join(name for name in networks_supporting(way) if name != model.name)
    hint = f"use the network {further}, or" if further else "no bundled network takes as many; use"
    raise UserError(
        f"{way} classes are more than the {limit} that the network {model.name!r} takes: {hint} "
        'method="centroid", or train with more classes.'
    )


def _dimension_factor(model: EmbeddingModel, options: Mapping[str, Any], way: int) -> float:
    """Return how much larger squared distances are than at the projection dimension of the calibration."""
    asked = options.get("projection_dim")
    if asked is None:
        return 1.0
    full = model.method.backbone.dim - way
    return float(asked / (getattr(model.method, "projection_dim", None) or full))


def with_examples(task: Task, names: Sequence[str], more: Examples, model: EmbeddingModel) -> Task:
    """The task with further examples, `more.labels` counting `names`; new names become classes.

    A picture that its class has already is passed over; one that another class has is refused.
    """
    task.check_network(model)
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
    return fit_task(classes, _joined(task.examples, added), model, task.method, task.options)


def without(task: Task, gone: Callable[[int, str], bool], model: EmbeddingModel) -> Task:
    """The task without the examples for which `gone(label, sha-256)`; a class without examples goes too."""
    task.check_network(model)
    labelled = zip(task.examples.labels, task.examples.hashes, strict=True)
    left = task.examples.kept(np.array([not gone(int(label), digest) for label, digest in labelled], dtype=bool))
    stay = np.unique(left.labels)
    if len(stay) < 2:
        raise ValueError(f"A task needs at least 2 classes, this would leave {len(stay)}: delete the file instead.")
    left = replace(left, labels=np.searchsorted(stay, left.labels))
    return fit_task([task.classes[label] for label in stay], left, model, task.method, task.options)


def leave_one_out(
    task: Task, model: EmbeddingModel, progress: Callable[[int, int], None] | None = None
) -> LeaveOneOut | None:
    """Return how many examples a head fitted without them gets right; `None` where a class has one image only.

    One image of every class is left out at a time, so that all classes lose as much; copies of an image count once.
    """
    _, first = np.unique(np.array(task.examples.hashes), return_index=True)
    once = task.examples.kept(np.isin(np.arange(len(task.examples)), first))
    ranks = _ranks(once.labels)
    if np.bincount(once.labels, minlength=len(task.classes)).min() < 2:
        return None
    hits, rounds = 0, min(int(ranks.max()) + 1, ROUNDS)
    for held in range(rounds):
        head = adapt(once.kept(ranks != held), model, task.method, task.options)
        left = once.kept(ranks == held)
        guesses = head.logits(torch.from_numpy(left.features)).argmax(dim=-1).numpy()
        hits += int((guesses == left.labels).sum())
        if progress:
            progress(held + 1, rounds)
    return LeaveOneOut(hits, int((ranks < rounds).sum()))


def _ranks(labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return for each example how many of its class come before it."""
    ranks = np.zeros(len(labels), np.int64)
    for label in np.unique(labels):
        ranks[labels == label] = np.arange((labels == label).sum())
    return ranks


@dataclass(frozen=True)
class LeaveOneOut:
    """How many of the examples that were left out were classified correctly."""

    hits: int
    total: int

    @property
    def accuracy(self) -> float:
        return self.hits / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of Wilson."""
        found = binomtest(self.hits, self.total).proportion_ci(method="wilson")
        return float(found.low), float(found.high)


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

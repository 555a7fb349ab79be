"""A task: what fitting a handful of labeled images leaves.

It keeps the features of its examples, so that classes can be added or removed without the images.
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

from tapnet.errors import NonFiniteError, NotFoundError, UserError
from tapnet.inference.adaptation import adapt
from tapnet.inference.examples import Examples, joined
from tapnet.inference.method_choice import resolve_method
from tapnet.inference.networks import FEATURES, EmbeddingModel, load_network, vector_model
from tapnet.inference.temperature import temperature_of
from tapnet.methods import Head, LinearHead


def _boolean(text: str) -> bool:
    return text == "True"


LABEL_KINDS: Mapping[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "bool": _boolean}


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
    label_kind: str = "str"  # what the class names were before they became text, one of LABEL_KINDS
    precision: str = "float32"  # in which its examples were embedded, and in which images have to be

    def logits(self, features: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return scores (n, way) in float64; if the head is linear, an image's do not depend on the others given."""
        linear = self.head.linear()
        if linear is None:
            return self.head.logits(torch.from_numpy(features).float()).detach().double().numpy()
        exact = LinearHead(linear.weight.double(), linear.bias.double(), linear.normalize)
        return exact.logits(torch.from_numpy(features).double()).numpy()

    def probabilities(self, features: NDArray[np.floating]) -> NDArray[np.float64]:
        """Return (n, way), each row summing to 1; raise NonFiniteError if the logits are not finite."""
        logits = self.logits(features)
        if not np.isfinite(logits).all():
            raise NonFiniteError("The logits of an image are NaN or infinite: the network has diverged.")
        scaled: NDArray[np.float64] = softmax(logits / self.temperature, axis=1)
        return scaled

    def shots(self) -> list[int]:
        """Return the number of examples of each class."""
        return [int(count) for count in np.bincount(self.examples.labels, minlength=len(self.classes))]

    def check_network(self, model: EmbeddingModel) -> None:
        """Raise UserError unless this is the network that the task was fitted with."""
        if self.network_sha256 not in (model.sha256, model.earlier_sha256):
            raise UserError(
                f"The task was fitted with the network {self.network!r} (sha-256 {self.network_sha256[:12]}…), got "
                f"{model.name!r} (sha-256 {model.sha256[:12]}…): give the first, or fit again.",
                parameter="network",
            )

    @property
    def method_label(self) -> str:
        """The method, with the options that change what it computes."""
        shots = self.options.get("reference_shots")
        return self.method if shots is None else f"{self.method} with references worth {shots:g} images"

    def labels(self) -> list[Any]:
        """Return the classes as they were given to `fit`: numbers as numbers."""
        return [LABEL_KINDS[self.label_kind](name) for name in self.classes]


def network_of(task: Task, network: str | None = None, device: str = "cpu") -> EmbeddingModel:
    """Return the network that a task was fitted with, by the name in the task or, if it moved, as given.

    Raise UserError if it is missing, or another one. For a task of feature vectors it only stands for a network.
    """
    if task.network == FEATURES:
        return vector_model(task.examples.features.shape[1])
    try:
        model = load_network(network or task.network, device)
    except NotFoundError:
        if network:
            raise
        raise NotFoundError(
            f"The task was fitted with {task.network!r}, which is not here (sha-256 {task.network_sha256[:12]}…): give "
            "the path to its checkpoint.",
            parameter="network",
        ) from None
    task.check_network(model)
    return model.embedding_as(task.precision)


def fit_task(
    classes: Sequence[str],
    examples: Examples,
    model: EmbeddingModel,
    method: str | None = None,
    options: Mapping[str, Any] | None = None,
    label_kind: str = "str",
) -> Task:
    """Return the method named, adapted to the examples, with its temperature.

    Without a name, or by "auto", `choose_method` names it; with options and no name it is the network's own. Raise
    UserError if there are fewer than 2 classes, or more than the method takes.
    """
    way = len(classes)
    if way < 2:
        raise UserError(f"A classifier needs at least 2 classes, got {way} class.")
    name, options = resolve_method(model, method, options)
    head = adapt(examples, model, name, options)
    temperature = temperature_of(head, examples, model, name, options)
    names = name, options, model.name, model.sha256, label_kind, model.precision
    return Task(tuple(classes), examples, head, temperature, *names)


def with_examples(task: Task, names: Sequence[str], more: Examples, model: EmbeddingModel) -> Task:
    """Return the task with further examples, `more.labels` counting `names`; new names become classes, in order.

    An image that its class has already is left out. Raise UserError if another class has it.
    """
    task.check_network(model)
    kind = LABEL_KINDS[task.label_kind]
    classes = tuple(sorted({*task.classes, *names}, key=kind))
    check_names_differ(classes)
    labels = np.array([classes.index(names[label]) for label in more.labels], dtype=np.int64)
    known = np.array([classes.index(task.classes[label]) for label in task.examples.labels], dtype=np.int64)
    owner = dict(zip(task.examples.hashes, known, strict=True))
    for digest, label in zip(more.hashes, labels, strict=True):
        if owner.get(digest, label) != label:
            raise UserError(
                f"An image given for {classes[label]!r} is already an example of {classes[owner[digest]]!r} (sha-256 "
                f"{digest[:12]}…): remove it there first."
            )
    fresh = np.array([digest not in owner for digest in more.hashes], dtype=bool)
    added = replace(more, labels=labels).kept(fresh)
    examples = joined(replace(task.examples, labels=known), added)
    return fit_task(classes, examples, model, task.method, task.options, task.label_kind)


def without(task: Task, gone: Callable[[int, str], bool], model: EmbeddingModel) -> Task:
    """Return the task without the examples for which `gone(label, sha-256)`; a class without examples goes too."""
    task.check_network(model)
    labeled = zip(task.examples.labels, task.examples.hashes, strict=True)
    left = task.examples.kept(np.array([not gone(int(label), digest) for label, digest in labeled], dtype=bool))
    stay = np.unique(left.labels)
    if len(stay) < 2:
        raise UserError(f"A task needs at least 2 classes, this would leave {len(stay)}: delete the file instead.")
    left = replace(left, labels=np.searchsorted(stay, left.labels))
    names = [task.classes[label] for label in stay]
    return fit_task(names, left, model, task.method, task.options, task.label_kind)


def check_names_differ(classes: Sequence[str], spaces: bool = True) -> None:
    """Raise UserError if two classes differ only in upper and lower case or, with `spaces`, in spaces around them."""
    keys = [(name.strip() if spaces else name).casefold() for name in classes]
    counts = Counter(keys)
    alike = [name for name, key in zip(classes, keys, strict=True) if counts[key] > 1]
    if alike:
        names = " and ".join(map(repr, alike))
        raise UserError(f"The classes {names} have the same name in other case or with other spaces: rename one.")

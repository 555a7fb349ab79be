"""A task: what fitting a handful of labeled images leaves.

It keeps the features of its examples, so that classes can be added or removed without the images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import binomtest
from torch import Tensor

from tapnet.errors import NotFoundError, UserError
from tapnet.evaluation.calibration import Calibration
from tapnet.functional import NonFiniteError
from tapnet.inference.method_choice import AUTO, choose_method
from tapnet.inference.networks import FEATURES, EmbeddingModel, load_network, networks_supporting, vector_model
from tapnet.inference.temperature import USUAL, growth_factor, mixed_temperature, usual_temperature
from tapnet.methods import PARAMETER_FREE, Head, LinearHead

ROUNDS = 20  # of leaving one image of every class out
_CALIBRATION_ROUNDS = 5


def _boolean(text: str) -> bool:
    return text == "True"


LABEL_KINDS: Mapping[str, Callable[[str], Any]] = {"str": str, "int": int, "float": float, "bool": _boolean}


@dataclass(frozen=True)
class Examples:
    """Labeled images as a task keeps them; `labels` count the task's classes."""

    features: NDArray[np.float32]  # (n, *feature_shape)
    labels: NDArray[np.int64]  # (n,)
    hashes: tuple[str, ...]  # sha-256 of each image
    thumbnails: tuple[bytes, ...]  # small JPEGs

    def __len__(self) -> int:
        return len(self.labels)

    def kept(self, chosen: NDArray[np.bool_]) -> Examples:
        return self._rows(np.flatnonzero(chosen))

    def sorted(self) -> Examples:
        """Return the examples by class and the sum of their features: in one order, however they came."""
        sums = self.features.reshape(len(self), -1).sum(axis=1, dtype=np.float64)
        return self._rows(np.lexsort((sums, self.labels)))

    def _rows(self, rows: NDArray[np.intp]) -> Examples:
        hashes, thumbnails = tuple(self.hashes[i] for i in rows), tuple(self.thumbnails[i] for i in rows)
        return Examples(self.features[rows], self.labels[rows], hashes, thumbnails)


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
    return model.in_precision(task.precision)


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
    options = {key: value for key, value in (options or {}).items() if value is not None}
    name, options = _resolved(method, options, model)
    head = adapt(examples, model, name, options)
    temperature = _temperature(head, examples, model, name, options)
    names = name, options, model.name, model.sha256, label_kind, model.precision
    return Task(tuple(classes), examples, head, temperature, *names)


def _resolved(method: str | None, options: Mapping[str, Any], model: EmbeddingModel) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the method and its options, by the rule if none is named."""
    if method is not None and method != AUTO:
        return method, options
    if options:
        return model.default_method, options
    choice = choose_method(model)
    return choice.name, dict(choice.options)


def _temperature(
    head: Head, examples: Examples, model: EmbeddingModel, method: str, options: Mapping[str, Any]
) -> float:
    """Return the temperature of the network's calibration for this method or, where it has none, of the examples."""
    shots, tables = np.bincount(examples.labels).tolist(), model.calibration
    if method in PARAMETER_FREE and method not in tables.tables:
        usual = usual_temperature(method, examples.features, examples.labels)
        return temperature_of_examples(usual, USUAL, examples, model, method, options)
    calibrated = tables.temperature(method, shots) * _dimension_factor(model, options, len(shots))
    if options.get("reference_shots") is None:
        return calibrated
    usual = calibrated * _blend_factor(head, examples, model, method, options)
    return temperature_of_examples(usual, tables, examples, model, method, options)


def temperature_of_examples(
    usual: float,
    calibration: Calibration,
    examples: Examples,
    model: EmbeddingModel,
    method: str,
    options: Mapping[str, Any],
) -> float:
    """Return a temperature for what the network was not calibrated for: the usual one, and that of its examples.

    The examples are left out one of every class at a time; where a class has one only, the usual one remains. They are
    sorted first, so that a task does not depend on the order in which they came.
    """
    held = held_out_logits(examples.sorted(), model, method, options, _CALIBRATION_ROUNDS)
    if held is None:
        return usual
    return mixed_temperature(usual, growth_factor(calibration, method, np.bincount(examples.labels).tolist()), *held)


def adapt(examples: Examples, model: EmbeddingModel, method: str, options: Mapping[str, Any]) -> Head:
    """Return the head of a method for these examples; a linear one as its linear layer on the CPU and no more."""
    adapted = adapted_head(examples, model, method, options)
    linear = adapted.linear()
    if linear is None:
        return adapted if model.device.type == "cpu" else _DeviceHead(adapted, model.device)
    return LinearHead(linear.weight.cpu(), linear.bias.cpu(), linear.normalize)


@dataclass(frozen=True)
class _DeviceHead(Head):
    """A head on another device, for features on the CPU."""

    head: Head
    device: torch.device

    def logits(self, query: Tensor) -> Tensor:
        return self.head.logits(query.to(self.device)).cpu()


def adapted_head(examples: Examples, model: EmbeddingModel, method: str, options: Mapping[str, Any]) -> Head:
    """Return the head of a method for these examples, with its projection where it has one."""
    ready = model.method_named(method, options)
    labels = torch.from_numpy(examples.labels).to(model.device)
    way = int(labels.max()) + 1
    if ready.max_way is not None and way > ready.max_way:
        _check_way(way, ready.max_way, model)
    with torch.set_grad_enabled(ready.gradients_at_test):
        return ready.adapt(torch.from_numpy(examples.features).to(model.device), labels)


def _check_way(way: int, limit: int, model: EmbeddingModel) -> None:
    further = " or ".join(name for name in networks_supporting(way) if name != model.name)
    hint = f"use the network {further}, or" if further else "no bundled network takes as many; use"
    raise UserError(
        f"{way} classes are more than the {limit} that the network {model.name!r} takes: {hint} the method centroid, "
        "or train with more classes.",
        parameter="method",
    )


def _dimension_factor(model: EmbeddingModel, options: Mapping[str, Any], way: int) -> float:
    """Return how much larger squared distances are than at the projection dimension of the calibration."""
    asked = options.get("projection_dim")
    if asked is None:
        return 1.0
    full = model.method.backbone.dim - way
    return float(asked / (getattr(model.method, "projection_dim", None) or full))


def _blend_factor(
    head: Head, examples: Examples, model: EmbeddingModel, method: str, options: Mapping[str, Any]
) -> float:
    """Return how much farther apart logits are than with the references alone, for which networks are calibrated."""
    plain = adapt(examples, model, method, {**options, "reference_shots": None})
    blended, alone = (_logit_scale(each) for each in (head, plain))
    return blended / alone


def _logit_scale(head: Head) -> float:
    linear = head.linear()
    assert linear is not None
    return float((linear.weight - linear.weight.mean(dim=-2, keepdim=True)).norm())


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
    examples = _joined(replace(task.examples, labels=known), added)
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


def leave_one_out(
    task: Task, model: EmbeddingModel, progress: Callable[[int, int], None] | None = None, method: str | None = None
) -> LeaveOneOut | None:
    """Return how many examples a head fitted without them gets right; `None` where a class has one image only.

    One image of every class is left out at a time, so that all classes lose as much; copies of an image count once.
    `method` is another one than the task's, with its default options.
    """
    options = task.options if method is None else {}
    held = held_out_logits(task.examples, model, method or task.method, options, ROUNDS, progress)
    if held is None:
        return None
    logits, answers = held
    pairs = tuple(zip(answers.tolist(), logits.argmax(axis=1).tolist(), strict=True))
    return LeaveOneOut(sum(truth == guess for truth, guess in pairs), len(pairs), pairs)


def held_out_logits(
    examples: Examples,
    model: EmbeddingModel,
    method: str,
    options: Mapping[str, Any],
    rounds: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]] | None:
    """Return logits (n, way) of examples by heads fitted without them, and their labels; `None` as `leave_one_out`."""
    once, ranks = distinct(examples)
    if np.bincount(once.labels, minlength=int(examples.labels.max()) + 1).min() < 2:
        return None
    logits, answers, rounds = [], [], min(int(ranks.max()) + 1, rounds)
    for held in range(rounds):
        head = adapt(once.kept(ranks != held), model, method, options)
        left = once.kept(ranks == held)
        logits.append(head.logits(torch.from_numpy(left.features)).detach().double().numpy())
        answers.append(left.labels)
        if progress:
            progress(held + 1, rounds)
    return np.concatenate(logits), np.concatenate(answers)


def distinct(examples: Examples) -> tuple[Examples, NDArray[np.int64]]:
    """Return the examples without copies of an image, and for each how many of its class come before it."""
    _, first = np.unique(np.array(examples.hashes), return_index=True)
    once = examples.kept(np.isin(np.arange(len(examples)), first))
    return once, _ranks(once.labels)


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
    pairs: tuple[tuple[int, int], ...] = field(default=(), repr=False, compare=False)  # (true, predicted) labels

    @property
    def accuracy(self) -> float:
        return self.hits / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of Wilson."""
        found = binomtest(self.hits, self.total).proportion_ci(method="wilson")
        return float(found.low), float(found.high)


def check_names_differ(classes: Sequence[str]) -> None:
    """Raise UserError if two classes differ only in upper and lower case."""
    counts = Counter(name.casefold() for name in classes)
    alike = [name for name in classes if counts[name.casefold()] > 1]
    if alike:
        raise UserError(f"The classes {' and '.join(map(repr, alike))} have the same name in other case: rename one.")


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

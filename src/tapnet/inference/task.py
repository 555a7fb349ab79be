"""A task: what fitting a handful of labeled images leaves, and its file.

A task is its examples, how they are fitted, and the digest of the network that embedded them. The head that scores is
computed from the examples when the task is opened (`TaskPredictor`), so nothing in a task can contradict it.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from scipy.special import softmax

from tapnet import __version__
from tapnet.checkpoint import HEADER, TASK, content_digest
from tapnet.errors import NonFiniteError, NotFoundError, UserError
from tapnet.hardware import PRECISIONS
from tapnet.inference.networks import FEATURES, EmbeddingModel, load_network, vector_model
from tapnet.inference.predictor import check_task_path, trained_network_message
from tapnet.methods import METHODS
from tapnet.paths import write_atomically

FORMAT = 3
LABEL_KINDS: Mapping[str, Callable[[str], Any]] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": lambda name: name == "True",
}


@dataclass(frozen=True)
class Examples:
    """Labeled images as a task keeps them; `labels` count the task's classes."""

    features: NDArray[np.float32]  # (n, *feature_shape)
    labels: NDArray[np.int64]  # (n,)
    hashes: tuple[str, ...]  # sha-256 of each image
    thumbnails: tuple[bytes, ...]  # small JPEGs

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, rows: NDArray[np.intp] | NDArray[np.bool_]) -> Examples:
        """Return the examples in these rows, or where a mask is true."""
        rows = np.arange(len(self))[rows]
        hashes, thumbnails = tuple(self.hashes[i] for i in rows), tuple(self.thumbnails[i] for i in rows)
        return Examples(self.features[rows], self.labels[rows], hashes, thumbnails)

    def by_class(self) -> Examples:
        """Return the examples class after class, so that adding in steps and fitting at once give one order."""
        return self.take(np.argsort(self.labels, kind="stable"))

    def sorted(self) -> Examples:
        """Return the examples by class and the sum of their features: in one order, however they came."""
        sums = self.features.reshape(len(self), -1).sum(axis=1, dtype=np.float64)
        return self.take(np.lexsort((sums, self.labels)))

    def joined(self, other: Examples) -> Examples:
        """Return both, class after class."""
        features, labels = np.concatenate([self.features, other.features]), np.concatenate([self.labels, other.labels])
        return Examples(features, labels, self.hashes + other.hashes, self.thumbnails + other.thumbnails).by_class()

    def distinct(self) -> tuple[Examples, NDArray[np.int64]]:
        """Return the examples without copies of an image, and for each how many of its class come before it."""
        _, first = np.unique(np.array(self.hashes), return_index=True)
        once = self.take(np.sort(first))
        ranks = np.zeros(len(once), np.int64)
        for label in np.unique(once.labels):
            ranks[once.labels == label] = np.arange((once.labels == label).sum())
        return once, ranks


@dataclass(frozen=True)
class Task:
    """A classifier of images: its classes and examples, how they are fitted, and which network they belong to."""

    classes: tuple[str, ...]
    examples: Examples
    temperature: float
    method: str
    options: Mapping[str, Any]  # of the method's adaptation
    network: str
    network_sha256: str
    label_kind: str = "str"  # what the class names were before they became text, one of LABEL_KINDS
    precision: str = "float32"  # in which its examples were embedded, and in which images have to be

    def probabilities(self, logits: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return (n, way) for logits, at the temperature of the task; raise NonFiniteError if they are not finite."""
        if not np.isfinite(logits).all():
            raise NonFiniteError("The logits of an image are NaN or infinite: the network has diverged.")
        rows: NDArray[np.float64] = softmax(logits / self.temperature, axis=1)
        return rows

    def shots(self) -> list[int]:
        """Return the number of examples of each class."""
        return [int(count) for count in np.bincount(self.examples.labels, minlength=len(self.classes))]

    def check_network(self, model: EmbeddingModel) -> None:
        """Raise UserError unless this is the network that the task was fitted with."""
        if self.network_sha256 != model.sha256:
            raise UserError(
                f"The task was fitted with the network {self.network!r} (sha-256 {self.network_sha256[:12]}…), got "
                f"{model.name!r} (sha-256 {model.sha256[:12]}…): give the first, or fit again.",
                parameter="network",
            )
        if (shape := self.examples.features.shape[1:]) != model.feature_shape:
            raise UserError(
                f"The task has features of shape {shape}, but its network has {model.feature_shape}: fit it again."
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


def check_names_differ(classes: Sequence[str]) -> None:
    """Raise UserError if two classes differ only in upper and lower case or in spaces around them."""
    keys = [name.strip().casefold() for name in classes]
    counts = Counter(keys)
    if alike := [name for name, key in zip(classes, keys, strict=True) if counts[key] > 1]:
        names = " and ".join(map(repr, alike))
        raise UserError(f"The classes {names} have the same name in other case or with other spaces: rename one.")


def write_task(task: Task, path: str | Path) -> None:
    """Write the file, whole or not at all: one safetensors file, the same bytes for the same task."""
    examples = task.examples
    tensors: dict[str, NDArray[Any]] = {
        "features": np.ascontiguousarray(examples.features),
        "labels": np.ascontiguousarray(examples.labels),
        "thumbnails": np.frombuffer(bytearray().join(examples.thumbnails), np.uint8),
        "thumbnail_lengths": np.array([len(thumbnail) for thumbnail in examples.thumbnails], np.int64),
    }
    header = {name: value for name, value in vars(task).items() if name != "examples"}
    header |= {"hashes": examples.hashes, "options": dict(task.options), "version": __version__, "format": FORMAT}
    header["digest"] = _digest(header, tensors)
    write_atomically(Path(path), save(tensors, {TASK: json.dumps(header, sort_keys=True)}))


def read_task(path: str | Path) -> Task:
    """Return the task in a file; raise UserError if there is none, or if it is damaged or inconsistent."""
    return read_task_and_header(path)[0]


def read_task_and_header(path: str | Path) -> tuple[Task, dict[str, Any]]:
    """Return the task in a file, as `read_task` does, and all that the file says beside its tensors."""
    path = Path(path)
    check_task_path(path)
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise UserError(f"{path} is damaged or not a task file ({error}).") from None
    if HEADER in metadata:
        raise UserError(trained_network_message(path))
    if TASK not in metadata:
        raise UserError(f"{path} is a safetensors file, but not a task: make one with `tapnet fit`.")
    try:
        header = json.loads(metadata[TASK])
        if header["format"] != FORMAT:
            raise UserError(f"it has format {header['format']}, this version reads {FORMAT}")
        if header["digest"] != _digest(header, tensors):
            raise UserError("its content does not match its digest")
        task = _parse(header, tensors)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise UserError(f"{path} is damaged or was changed ({error}): fit it again.") from None
    return task, header


def _digest(header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> str:
    return content_digest(header, {name: torch.from_numpy(array) for name, array in tensors.items()})


def _parse(header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Task:
    """Return the task; raise UserError unless everything in the file fits together."""
    features, labels, whole = tensors["features"], tensors["labels"], tensors["thumbnails"].tobytes()
    ends = [0, *np.cumsum(tensors["thumbnail_lengths"]).tolist()]
    thumbnails = tuple(whole[start:end] for start, end in pairwise(ends))
    examples = Examples(features, labels, tuple(header["hashes"]), thumbnails)
    names = "temperature", "method", "options", "network", "network_sha256", "label_kind", "precision"
    task = Task(tuple(header["classes"]), examples, *(header[name] for name in names))
    count, way = len(examples.hashes), len(task.classes)
    finite = len(features) == count and features.ndim > 1 and features.dtype == np.float32 and np.isfinite(features)
    if not np.all(finite):
        raise UserError(f"features need {count} rows of finite float32, got {features.dtype} {features.shape}")
    if labels.shape != (count,) or labels.dtype != np.int64:
        raise UserError(f"labels need int64 ({count},), got {labels.dtype} {labels.shape}")
    if task.method not in METHODS or not isinstance(task.options, dict) or not 0 < task.temperature < math.inf:
        raise UserError("its method, options or temperature are not valid")
    if task.precision not in PRECISIONS:
        raise UserError(f"its precision is {task.precision!r}, expected {' or '.join(PRECISIONS)}")
    if task.label_kind not in LABEL_KINDS:
        raise UserError(f"its labels are {task.label_kind!r}, expected {', '.join(LABEL_KINDS)}")
    task.labels()
    if not all(isinstance(name, str) and name for name in (*task.classes, task.network, task.network_sha256)):
        raise UserError("its names are not text")
    if len(thumbnails) != count or set(labels.tolist()) != set(range(way)):
        raise UserError("its examples, thumbnails and classes do not match")
    check_names_differ(task.classes)
    return task

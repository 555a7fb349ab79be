"""The file of a task: one safetensors file, the same bytes for the same task.

It names the network by name and sha-256, and carries a digest of all that it holds. Nothing in it is pickled;
everything in it is checked when it is read.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from tapnet import __version__
from tapnet.checkpoint import HEADER, TASK, content_digest
from tapnet.errors import UserError
from tapnet.hardware import PRECISIONS
from tapnet.inference.adaptation import adapt
from tapnet.inference.examples import Examples
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.task import LABEL_KINDS, Task, check_names_differ
from tapnet.inference.task_path import check_task_path, trained_network_message
from tapnet.methods import METHODS, Head, LinearHead
from tapnet.paths import write_atomically

FORMAT = 2
_TOLERANCE = 1e-3


def write_task(task: Task, path: str | Path) -> None:
    """Write the file, whole or not at all."""
    tensors, header = _tensors(task), _header(task)
    header["digest"] = _digest(header, tensors)
    write_atomically(Path(path), save(tensors, {TASK: json.dumps(header, sort_keys=True)}))


def file_version(path: str | Path) -> tuple[int, ...]:
    """Return numbers that change when a file is written anew, for `replace_task`; none if there is no such file."""
    if not Path(path).exists():
        return ()
    status = Path(path).stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def replace_task(task: Task, path: str | Path, version: tuple[int, ...]) -> None:
    """Write a changed task; raise UserError if its file is no longer of this version, so that no change is lost."""
    if file_version(path) != version:
        raise UserError(f"{path} was changed meanwhile by another process: run the same command again.")
    write_task(task, path)


def _header(task: Task) -> dict[str, Any]:
    linear = task.head.linear()
    return {
        "classes": task.classes,
        "hashes": task.examples.hashes,
        "temperature": task.temperature,
        "normalize": linear is not None and linear.normalize,
        "label_kind": task.label_kind,
        "method": task.method,
        "options": dict(task.options),
        "network": task.network,
        "network_sha256": task.network_sha256,
        **({} if task.precision == "float32" else {"precision": task.precision}),
        "version": __version__,
        "format": FORMAT,
    }


def _tensors(task: Task) -> dict[str, NDArray[Any]]:
    lengths = [len(thumbnail) for thumbnail in task.examples.thumbnails]
    tensors = {
        "features": task.examples.features,
        "labels": task.examples.labels,
        "thumbnails": np.frombuffer(bytearray().join(task.examples.thumbnails), np.uint8),
        "thumbnail_lengths": np.array(lengths, np.int64),
    }
    linear = task.head.linear()
    if linear is not None:
        tensors |= {"weight": linear.weight.detach().cpu().numpy(), "bias": linear.bias.detach().cpu().numpy()}
    return {name: np.ascontiguousarray(array) for name, array in tensors.items()}


def read_task(path: str | Path) -> Task:
    """Return the task in a file; raise UserError if there is none, or if it is damaged or inconsistent."""
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
        task = _task(json.loads(metadata[TASK]), tensors)
        _check(task)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} is damaged or was changed ({error}): fit it again.") from None
    return task


def read_header(path: Path) -> dict[str, Any]:
    """Return what a task file says beside its tensors; `read_task` checks it."""
    with safe_open(path, framework="np") as file:
        header: dict[str, Any] = json.loads((file.metadata() or {})[TASK])
    return header


def _task(header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Task:
    if header["format"] == 1:
        header = _translated(header)
    elif header["format"] != FORMAT:
        raise UserError(f"it has format {header['format']}, this version reads 1 and {FORMAT}")
    elif header["digest"] != _digest(header, tensors):
        raise UserError("its content does not match its digest")
    return Task(
        classes=tuple(header["classes"]),
        examples=_examples(header, tensors),
        head=_linear(tensors, bool(header["normalize"])) if "weight" in tensors else _PendingHead(),
        temperature=float(header["temperature"]),
        method=header["method"],
        options=header["options"],
        network=header["network"],
        network_sha256=header["network_sha256"],
        label_kind=header["label_kind"],
        precision=header.get("precision", "float32"),
    )


def _translated(header: dict[str, Any]) -> dict[str, Any]:
    """Return a header of format 1 in the words of format 2; the method was its `head`, and it had no digest."""
    of_tapnet = ("selection", "projection_dim") if header["head"] == "tapnet" else ()
    options = {name: header[name] for name in of_tapnet if header[name] is not None}
    names = {"method": header["head"], "options": options, "normalize": header["unit_length"], "label_kind": "str"}
    return header | names


def _digest(header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> str:
    return content_digest(header, {name: torch.from_numpy(array) for name, array in tensors.items()})


def _examples(header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Examples:
    ends = np.cumsum(tensors["thumbnail_lengths"])
    whole = tensors["thumbnails"].tobytes()
    thumbnails = tuple(
        whole[end - length : end] for end, length in zip(ends, tensors["thumbnail_lengths"], strict=True)
    )
    return Examples(tensors["features"], tensors["labels"], tuple(header["hashes"]), thumbnails)


def _linear(tensors: dict[str, NDArray[Any]], normalize: bool) -> LinearHead:
    way, dim = len(tensors["bias"]), tensors["features"].shape[1]
    for name, shape in (("weight", (way, dim)), ("bias", (way,))):
        if tensors[name].shape != shape or tensors[name].dtype != np.float32:
            raise UserError(f"{name} needs float32 {shape}, got {tensors[name].dtype} {tensors[name].shape}")
        if not np.isfinite(tensors[name]).all():
            raise UserError(f"{name} has a value that is not a number")
    return LinearHead(torch.from_numpy(tensors["weight"]), torch.from_numpy(tensors["bias"]), normalize)


def _check(task: Task) -> None:
    """Raise UserError unless everything in the file fits together."""
    way, count = len(task.classes), len(task.examples.hashes)
    features, labels, linear = task.examples.features, task.examples.labels, task.head.linear()
    if len(features) != count or features.ndim < 2 or features.dtype != np.float32 or not np.isfinite(features).all():
        raise UserError(f"features need {count} rows of finite float32, got {features.dtype} {features.shape}")
    if labels.shape != (count,) or labels.dtype != np.int64:
        raise UserError(f"labels need int64 ({count},), got {labels.dtype} {labels.shape}")
    if linear is not None and len(linear.bias) != way:
        raise UserError(f"its head has {len(linear.bias)} classes, expected {way}")
    if task.method not in METHODS or not isinstance(task.options, dict) or not task.temperature > 0:
        raise UserError("its method, options or temperature are not valid")
    if task.precision not in PRECISIONS:
        raise UserError(f"its precision is {task.precision!r}, expected {' or '.join(PRECISIONS)}")
    if task.label_kind not in LABEL_KINDS:
        raise UserError(f"its labels are {task.label_kind!r}, expected {', '.join(LABEL_KINDS)}")
    task.labels()
    if not all(isinstance(name, str) and name for name in (*task.classes, task.network, task.network_sha256)):
        raise UserError("its names are not text")
    if len(task.examples.thumbnails) != count or set(labels.tolist()) != set(range(way)):
        raise UserError("its examples, thumbnails and classes do not match")
    check_names_differ(task.classes, spaces=False)  # earlier versions allowed them


def with_network(task: Task, model: EmbeddingModel) -> Task:
    """Return the task ready to predict with its network.

    Raise UserError if it belongs to another one, or if its head does not follow from its examples.
    """
    task.check_network(model)
    shape, expected = task.examples.features.shape[1:], model.method.feature_shape
    if shape != expected:
        raise UserError(f"The task has features of shape {shape}, but its network has {expected}: fit it again.")
    head = adapt(task.examples, model, task.method, task.options)
    kept, fitted = task.head.linear(), head.linear()
    if kept is None or fitted is None:
        return replace(task, head=head)
    for stored, found in ((kept.weight, fitted.weight), (kept.bias, fitted.bias)):
        if not torch.allclose(stored, found, rtol=_TOLERANCE, atol=_TOLERANCE * float(found.abs().max())):
            raise UserError("The head of the task does not follow from its examples: it was changed. Fit it again.")
    return task


class _PendingHead(Head):
    """Stands for a head that is not linear, until the network of the task is known."""

    def logits(self, query: Tensor) -> Tensor:  # noqa: ARG002
        raise UserError("This task scores by its network: open it with `with_network`.")

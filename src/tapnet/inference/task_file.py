"""The file of a task: one safetensors file, the same bytes for the same task.

It names the network by name and sha-256. Nothing in it is pickled; everything in it is checked when it is read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from tapnet._version import __version__
from tapnet.checkpoint import BEST, HEADER, TASK, write_atomically
from tapnet.heads import HEADS, Adapted
from tapnet.inference.task import Examples, Settings, Task, check_names_differ

FORMAT = 1
_TOLERANCE = 1e-3


def write_task(task: Task, path: Path) -> None:
    """The file, whole or not at all."""
    write_atomically(path, save(_tensors(task), {TASK: json.dumps(_header(task), sort_keys=True)}))


def _header(task: Task) -> dict[str, Any]:
    return {
        "classes": task.classes,
        "hashes": task.examples.hashes,
        "temperature": task.temperature,
        "unit_length": task.adapted.unit_length,
        "head": task.settings.head,
        "selection": task.settings.selection,
        "projection_dim": task.settings.projection_dim,
        "network": task.network,
        "network_sha256": task.network_sha256,
        "version": __version__,
        "format": FORMAT,
    }


def _tensors(task: Task) -> dict[str, NDArray[Any]]:
    lengths = [len(thumbnail) for thumbnail in task.examples.thumbnails]
    return {
        "features": task.examples.features,
        "labels": task.examples.labels,
        "thumbnails": np.frombuffer(b"".join(task.examples.thumbnails), np.uint8),
        "thumbnail_lengths": np.array(lengths, np.int64),
        "weight": task.adapted.weight,
        "bias": task.adapted.bias,
        "chosen": task.adapted.chosen,
        "references": task.adapted.references,
        "errors_basis": task.adapted.errors_basis,
        "reference_bias": task.adapted.reference_bias,
    }


def read_task(path: str | Path) -> Task:
    """The task in a file, checked: a damaged or inconsistent one is refused."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(_no_run(path) if (path / BEST).exists() else _no_folder(path))
    if not path.is_file():
        raise FileNotFoundError(f"There is no task file {path}: make one with `tapnet fit FOLDER --out {path}`.")
    if path.suffix.lower() == ".onnx":
        raise ValueError(f"{path} is an exported task, which `tapnet predict` takes; needed is the task file itself.")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a task file ({error}).") from None
    if HEADER in metadata:
        raise ValueError(_no_run(path))
    if TASK not in metadata:
        raise ValueError(f"{path} is a safetensors file, but not a task: make one with `tapnet fit`.")
    try:
        task = _task(json.loads(metadata[TASK]), tensors)
        _check(task)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is damaged or was changed ({error}): fit it again.") from None
    return task


def _no_run(path: Path) -> str:
    return (
        f"{path} is a trained network, which `tapnet evaluate {path}` measures; needed is a task file, which "
        f"`tapnet fit FOLDER --network {path} --out FILE` makes with it."
    )


def _no_folder(path: Path) -> str:
    return (
        f"{path} is a folder, needed is a task file: `tapnet fit {path} --out FILE` makes one of a folder of classes."
    )


def _task(header: dict[str, Any], tensors: dict[str, NDArray[Any]]) -> Task:
    if header["format"] != FORMAT:
        raise ValueError(f"it has format {header['format']}, this version reads {FORMAT}")
    ends = np.cumsum(tensors["thumbnail_lengths"])
    whole = tensors["thumbnails"].tobytes()
    thumbnails = tuple(
        whole[end - length : end] for end, length in zip(ends, tensors["thumbnail_lengths"], strict=True)
    )
    examples = Examples(tensors["features"], tensors["labels"], tuple(header["hashes"]), thumbnails)
    adapted = Adapted(
        tensors["weight"],
        tensors["bias"],
        bool(header["unit_length"]),
        header["projection_dim"],
        tensors["chosen"],
        tensors["references"],
        tensors["errors_basis"],
        tensors.get("reference_bias", np.zeros_like(tensors["bias"])),
    )
    settings = Settings(header["head"], header["selection"], header["projection_dim"])
    names = tuple(header["classes"]), header["network"], header["network_sha256"]
    return Task(names[0], examples, adapted, float(header["temperature"]), settings, names[1], names[2])


def _check(task: Task) -> None:
    """Everything in the file fits together."""
    way, count = len(task.classes), len(task.examples.hashes)
    dim = task.adapted.weight.shape[1]
    tap = task.settings.head == "tapnet"
    shapes: dict[str, tuple[NDArray[Any], tuple[int, ...], type[Any]]] = {
        "features": (task.examples.features, (count, dim), np.float32),
        "labels": (task.examples.labels, (count,), np.int64),
        "weight": (task.adapted.weight, (way, dim), np.float32),
        "bias": (task.adapted.bias, (way,), np.float32),
        "chosen": (task.adapted.chosen, (way if tap else 0,), np.int64),
        "references": (task.adapted.references, (way, dim), np.float32),
        "errors_basis": (task.adapted.errors_basis, (way if tap else 0, dim), np.float32),
        "reference_bias": (task.adapted.reference_bias, (way,), np.float32),
    }
    for name, (array, shape, kind) in shapes.items():
        if array.shape != shape or array.dtype != kind:
            raise ValueError(f"{name} needs {np.dtype(kind).name} {shape}, got {array.dtype} {array.shape}")
        if not np.isfinite(array).all():
            raise ValueError(f"{name} has a value that is not a number")
    if task.settings.head not in HEADS or not task.temperature > 0:
        raise ValueError("its head or temperature cannot be")
    if not all(isinstance(name, str) and name for name in (*task.classes, task.network, task.network_sha256)):
        raise ValueError("its names are not text")
    if len(task.examples.thumbnails) != count or not set(task.examples.labels) == set(range(way)):
        raise ValueError("its examples, thumbnails and classes do not match")
    check_names_differ(task.classes)
    _check_head(task.adapted)


def _check_head(adapted: Adapted) -> None:
    """TapNet's linear layer is what its references and its basis say."""
    if not len(adapted.chosen):
        return
    basis = adapted.errors_basis
    if np.abs(basis @ basis.T - np.eye(len(basis))).max() > _TOLERANCE:
        raise ValueError("its basis is not orthonormal")
    inside = adapted.projected(adapted.references)
    bias = 2 * adapted.reference_bias - np.square(inside).sum(axis=1)
    if not np.allclose(adapted.bias, bias, rtol=_TOLERANCE, atol=_TOLERANCE):
        raise ValueError("its head does not follow from its references")

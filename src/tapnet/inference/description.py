"""What a file holds: a task, a checkpoint, or an exported task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from tapnet.errors import NotFoundError, UserError


def describe(path: str | Path) -> dict[str, Any]:
    """Return what a task, checkpoint or ONNX file holds, as plain values under readable names.

    The network of a task is not needed. Raise UserError if the file is missing, damaged or none of ours.
    """
    from tapnet.paths import bundled_checkpoints, find_checkpoint

    path, name = Path(path), str(path)
    if path.is_dir() or (not path.exists() and name in bundled_checkpoints()):
        path = find_checkpoint(path)
    if not path.is_file():
        raise NotFoundError(
            f"There is no file {path}: give a task, a checkpoint, an ONNX file, the folder of a run, or one of the "
            f"bundled {', '.join(bundled_checkpoints())}."
        )
    kind, content = _described(path)
    return {"file": str(path), "kind": kind, "bytes": path.stat().st_size} | content


def _described(path: Path) -> tuple[str, dict[str, Any]]:
    if path.suffix.lower() == ".onnx":  # read without PyTorch
        from tapnet.inference.exported_task import OnnxPredictor

        predictor, names = OnnxPredictor(path), ("network", "network_sha256", "method")
        network, digest, method = (predictor.metadata.get(name) for name in names)
        values = {"classes": list(predictor.classes), "network": network, "network sha-256": digest, "method": method}
        return "exported task", values | {"preprocessing": predictor.preprocessing.as_dict()}
    from tapnet.checkpoint import TASK, read_checkpoint
    from tapnet.inference.networks import preprocessing_of
    from tapnet.inference.task import read_task_and_header

    try:
        with safe_open(path, framework="np") as file:
            is_task = TASK in (file.metadata() or {})
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror or error}).") from None
    except (SafetensorError, ValueError):
        raise UserError(
            f"{path} is damaged, or neither a task nor a checkpoint: expected a file that `tapnet fit`, `train` or "
            "`export` wrote."
        ) from None
    if is_task:
        task, values = read_task_and_header(path)
        return "task", {
            "classes": dict(zip(task.classes, task.shots(), strict=True)),
            "examples": len(task.examples),
            "network": task.network,
            "network sha-256": task.network_sha256,
            "method": task.method,
            "options": dict(task.options),
            "temperature": task.temperature,
            "written by": f"tapnet {values['version']}, format {values['format']}",
        }
    checkpoint = read_checkpoint(path)
    header = checkpoint.header
    return "checkpoint", {
        "recipe": header.recipe.name,
        "method": header.recipe.method.name,
        "backbone": header.recipe.backbone.name,
        "dataset": header.recipe.data.name,
        "episodes": header.episode,
        "validation": header.validation,
        "parameters": sum(tensor.numel() for tensor in checkpoint.weights.values()),
        "preprocessing": preprocessing_of(header).as_dict(),
        "calibrated methods": list(header.calibration),
        "origin": "; ".join(header.lineage.describe()),
        "written by": f"tapnet {header.version}, format {header.format}",
    }

"""Whether a path can be that of a task file, told before anything slow is imported. Nothing here needs PyTorch."""

from __future__ import annotations

from pathlib import Path

from tapnet.checkpoint_files import BEST
from tapnet.errors import NotFoundError, UserError


def check_task_path(path: Path, exported: bool = False) -> None:
    """Raise UserError if there is no file, or if it is an exported task, unless that will do."""
    onnx = path.suffix.lower() == ".onnx"
    if onnx and exported:
        return  # `OnnxPredictor` has its own words
    if path.is_dir():
        if (path / BEST).exists():
            raise UserError(not_a_task(path))
        raise UserError(
            f"{path} is a folder, expected a task file: `tapnet fit {path} --out FILE` makes one of folders of classes."
        )
    if not path.is_file():
        raise NotFoundError(f"There is no task file {path}: make one with `tapnet fit FOLDER --out {path}`.")
    if onnx:
        raise UserError(f"{path} is an exported task, which `tapnet predict` takes; expected the task file itself.")


def not_a_task(path: Path) -> str:
    """Return what to say of a trained network in place of a task."""
    return (
        f"{path} is a trained network, which `tapnet evaluate {path}` measures; expected a task file, which "
        f"`tapnet fit FOLDER --network {path} --out FILE` makes with it."
    )

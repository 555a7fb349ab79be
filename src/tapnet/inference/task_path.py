"""Whether a path can be that of a task file, told before anything slow is imported. Nothing here needs PyTorch."""

from __future__ import annotations

from pathlib import Path

from tapnet.errors import NotFoundError, UserError
from tapnet.paths import BEST


def check_task_path(path: Path, allow_onnx: bool = False) -> None:
    """Raise UserError if the path is not that of a file, or is an exported task and `allow_onnx` is false."""
    onnx = path.suffix.lower() == ".onnx"
    if onnx and allow_onnx:
        return  # `OnnxPredictor` has its own words
    if path.is_dir():
        if (path / BEST).exists():
            raise UserError(trained_network_message(path))
        raise UserError(
            f"{path} is a folder, expected a task file: `tapnet fit {path} --out FILE` makes one of folders of classes."
        )
    if not path.is_file():
        raise NotFoundError(f"There is no task file {path}: make one with `tapnet fit FOLDER --out {path}`.")
    if onnx:
        raise UserError(f"{path} is an exported task, which `tapnet predict` takes; expected the task file itself.")


def trained_network_message(path: Path) -> str:
    """Return the message for a trained network where a task file is expected."""
    return (
        f"{path} is a trained network, which `tapnet evaluate {path}` measures; expected a task file, which "
        f"`tapnet fit FOLDER --network {path} --out FILE` makes with it."
    )

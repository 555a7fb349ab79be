"""Where checkpoints are: the names of files, the bundled ones, and the file that a user means. Imports no PyTorch."""

from __future__ import annotations

from pathlib import Path

from tapnet.errors import NotFoundError

BEST, LAST = "best.safetensors", "last.safetensors"
BUNDLED = Path(__file__).parent / "checkpoints"


def bundled_checkpoints() -> dict[str, Path]:
    """Return the checkpoints that come with the package, by name."""
    return {path.stem: path for path in sorted(BUNDLED.glob("*.safetensors"))}


def find_checkpoint(path: str | Path) -> Path:
    """Return the file of a checkpoint: a path, the best one of a run folder, or a bundled one by name."""
    bundled, name, path = bundled_checkpoints(), str(path), Path(path)
    path = path / BEST if path.is_dir() else path
    if not path.is_file() and name in bundled:
        return bundled[name]
    if not path.is_file():
        raise NotFoundError(
            f"There is no checkpoint {path}: expected a .safetensors file, the folder of a run, or one of the bundled "
            f"{', '.join(bundled)}."
        )
    return path

"""Where files are: the user's folders, the names of checkpoints; files that are replaced as a whole, or locked.

Imports no PyTorch.
"""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from tapnet.errors import NotFoundError, UserError

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


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of prepared datasets: `root`, else $TAPNET_DATA, else `tapnet` in the user's cache folder."""
    return Path(root or os.environ.get("TAPNET_DATA") or _user_cache()).expanduser()


def feature_cache() -> Path:
    """Return the folder of cached features, in $TAPNET_CACHE or else in `tapnet` in the user's cache folder."""
    return Path(os.environ.get("TAPNET_CACHE") or _user_cache()) / "features"


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tapnet"


def write_atomically(path: Path, content: bytes) -> None:
    """Write the file under a temporary name, flush and rename it: readers find the old file or the new one.

    If the path is a symbolic link, the file that it points to is replaced.
    """
    path = path.resolve() if path.is_symlink() else path
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "Expected the name of a file, got a folder", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("xb") as file:  # readable by whom the user's mask allows
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise type(error)(error.errno, error.strerror, str(path)) from None  # the user knows that name
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def locked(path: str | Path, seconds: float = 0) -> Iterator[None]:
    """Inside, no other process is in such a block for the same file or folder.

    Wait for it so long, then raise UserError. The lock is a hidden file, beside the file or in the folder.
    """
    place = Path(path).resolve()
    lock = place / ".lock" if place.is_dir() else place.with_name(f".{place.name}.lock")
    try:
        with FileLock(lock, timeout=seconds):
            yield
    except Timeout:
        raise UserError(f"Another process is changing {path}: run the same command again when it has ended.") from None

"""Files that are replaced as a whole, so that no reader finds half of one."""

from __future__ import annotations

import errno
import os
import secrets
from pathlib import Path


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

"""The origin of a result: command, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("lightning-fabric", "numpy", "safetensors", "scipy", "torch")


def provenance() -> dict[str, Any]:
    """Return the command of this process, its time and host, and the versions it uses."""
    return {
        "command": sys.argv,
        "started": now(),
        "process": {"pid": os.getpid(), "host": platform.node()},
        "versions": {"tapnet": _version("tapnet"), "python": platform.python_version()}
        | {name: _version(name) for name in PACKAGES},
        "commit": commit(),
    }


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def commit() -> str | None:
    """Return the commit of the checkout of this package, with `+changes` if files differ; `None` if it is installed.

    It is read once per process: results recorded in the checkout are not a change of the code.
    """
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():
        return None
    try:
        name, changes = (_git(checkout, *words) for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno")))
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{name}+changes" if changes else name


def _git(checkout: Path, *words: str) -> str:
    command = ["git", "-C", str(checkout), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None

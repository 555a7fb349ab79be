"""Where prepared datasets and cached features are kept: by environment variables, else in the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def data_root(root: str | Path | None = None) -> Path:
    """Return the folder of prepared datasets: `root`, else $TAPNET_DATA, else `tapnet` in the user's cache folder."""
    return Path(root or os.environ.get("TAPNET_DATA") or _user_cache()).expanduser()


def feature_cache() -> Path:
    """Return the folder of cached features, in $TAPNET_CACHE or else in `tapnet` in the user's cache folder."""
    return Path(os.environ.get("TAPNET_CACHE") or _user_cache()) / "features"


def _user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tapnet"

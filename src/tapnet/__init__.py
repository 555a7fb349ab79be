"""Few-shot image classification by task-adaptive projection."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from tapnet.backbones import make_backbone as make_backbone
    from tapnet.backbones import wrap_backbone as wrap_backbone
    from tapnet.checkpoint import load as load
    from tapnet.data import load_dataset as load_dataset
    from tapnet.data.batches import EpisodeBatchSampler as EpisodeBatchSampler
    from tapnet.data.batches import episode_images as episode_images
    from tapnet.data.episodes import EpisodeSampler as EpisodeSampler
    from tapnet.inference.classifier import TapNetClassifier as TapNetClassifier
    from tapnet.methods import PrototypicalNetwork as PrototypicalNetwork
    from tapnet.methods import TapNet as TapNet

_HOMES = {
    "EpisodeBatchSampler": "tapnet.data.batches",
    "EpisodeSampler": "tapnet.data.episodes",
    "PrototypicalNetwork": "tapnet.methods",
    "TapNet": "tapnet.methods",
    "TapNetClassifier": "tapnet.inference.classifier",
    "episode_images": "tapnet.data.batches",
    "load": "tapnet.checkpoint",
    "load_dataset": "tapnet.data",
    "make_backbone": "tapnet.backbones",
    "wrap_backbone": "tapnet.backbones",
}

__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    """Public names are imported on first use, so that `tapnet --help` does not wait for PyTorch."""
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tapnet' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, which tab completion offers before they are imported."""
    return sorted(__all__)

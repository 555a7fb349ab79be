"""Directions of public classes in the features of a bundled network: what an image may show if no class of a task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save
from torch.nn import functional as F

from tapnet.backbones import Backbone
from tapnet.paths import BUNDLED, write_atomically

FOLDER = BUNDLED / "background"
_TENSOR, _NETWORK, _ORIGIN = "square_roots", "network_sha256", "origin"
Directions = NDArray[np.float32]


def read_background(name: str, network_sha256: str, backbone: Backbone) -> Directions | None:
    """Return directions (classes, dim) of unit length, or `None` if there are none for this very network.

    The file keeps square roots of averaged features, in bytes; as maps of one pixel they go through the metric.
    """
    path = FOLDER / f"{name}.safetensors"
    if not path.is_file():
        return None
    with safe_open(path, framework="pt") as file:
        if (file.metadata() or {}).get(_NETWORK) != network_sha256:
            return None
        roots = file.get_tensor(_TENSOR).float()
    device = next(backbone.parameters(), roots).device
    with torch.inference_mode():
        features = backbone.pool(roots.square()[:, :, None, None].to(device))
        found: Directions = F.normalize(features, dim=1).cpu().numpy()
    return found


def write_background(path: Path, roots: NDArray[np.floating], network_sha256: str, origin: str) -> None:
    """Write the mean square roots (classes, 1280) of classes, each scaled to bytes, and where they come from."""
    scaled = np.rint(255 * roots / roots.max(axis=1, keepdims=True)).astype(np.uint8)
    write_atomically(path, save({_TENSOR: scaled}, {_NETWORK: network_sha256, _ORIGIN: origin}))

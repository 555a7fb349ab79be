"""Features of every image of a split, at the backbone's own speed, and a cache of them on disk."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from tapnet import distributed
from tapnet._version import __version__
from tapnet.checkpoint import tensors_digest, write_atomically
from tapnet.data import ImageSet
from tapnet.data.batches import to_float_tensor
from tapnet.hardware import resolve_precision
from tapnet.methods import EmbeddingMethod

CACHE_BYTES = 2 * 2**30  # beyond this the files that were used longest ago go
_BATCH = 256
_ABANDONED_SECONDS = 3600.0  # no process takes that long to write a file of the cache
_DIGEST = "sha256"


@torch.inference_mode()
def embed(method: EmbeddingMethod, images: ImageSet, precision: str = "float32") -> Tensor:
    """Features (n, dim) of every image, float32, on the method's device; several processes share the work."""
    device = next(method.parameters()).device
    network = fused(method)
    features = torch.zeros(len(images), method.backbone.dim, device=device)
    with torch.autocast(device.type, torch.bfloat16, enabled=resolve_precision(precision, device) == "bf16"):
        for start in range(distributed.rank() * _BATCH, len(images), distributed.size() * _BATCH):
            chosen = np.arange(start, min(start + _BATCH, len(images)))
            features[start : start + _BATCH] = network.embed(to_float_tensor(images.gather(chosen), device)).float()
    return distributed.all_reduce_sum(features)


def fused(method: EmbeddingMethod) -> EmbeddingMethod:
    """A copy for inference: batch normalisation folded into the convolution before it, channels last in memory."""
    network = copy.deepcopy(method).eval().requires_grad_(False)
    for block in network.modules():
        if isinstance(block, nn.Sequential):
            for index, (first, second) in enumerate(pairwise(list(block))):
                if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d):
                    block[index], block[index + 1] = fuse_conv_bn_eval(first, second), nn.Identity()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def default_cache() -> Path:
    """TAPNET_CACHE, or the folder for caches of this user."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("TAPNET_CACHE") or Path(home) / "tapnet") / "features"


def cached_features(method: EmbeddingMethod, images: ImageSet, precision: str, folder: Path) -> Tensor:
    """The features from the cache when they are there and whole, else computed and put there."""
    path = folder / f"{feature_key(method, images, precision)}.safetensors"
    device = next(method.parameters()).device
    found = _read(path, (len(images), method.backbone.dim))
    if not distributed.any_rank(found is None):
        assert found is not None
        return found.to(device)
    features = embed(method, images, precision)
    if distributed.rank() == 0:
        tensors = {"features": features.cpu().contiguous()}
        try:
            write_atomically(path, save(tensors, {_DIGEST: tensors_digest(tensors)}))
            _forget_oldest(folder)
        except OSError:
            pass  # a cache that cannot be written costs time, not the result
    return features


def feature_key(method: EmbeddingMethod, images: ImageSet, precision: str) -> str:
    """A name that changes with the weights, the data and its preprocessing, the precision, the device, the versions."""
    facts = [
        tensors_digest(method.state_dict()),
        f"{type(method).__name__} {method.backbone}",
        [images.fingerprint, images.rotations, list(images.image_shape), len(images)],
        [precision, next(method.parameters()).device.type],
        [__version__, torch.__version__],
    ]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _read(path: Path, shape: tuple[int, int]) -> Tensor | None:
    """The features in a file; nothing when it is not there, damaged or of another shape."""
    try:
        with safe_open(path, framework="pt") as file:
            digest, features = (file.metadata() or {}).get(_DIGEST), file.get_tensor("features")
        os.utime(path)
    except (SafetensorError, OSError, ValueError):
        return None
    whole = features.shape == shape and features.dtype == torch.float32
    return features if whole and tensors_digest({"features": features}) == digest else None


def _forget_oldest(folder: Path) -> None:
    """Delete what a killed process left half written, and the files used longest ago beyond CACHE_BYTES."""
    for path in folder.glob(".*.safetensors.*"):
        if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
            path.unlink(missing_ok=True)
    files = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime, reverse=True)
    total = 0
    for path in files:
        total += path.stat().st_size
        if total > CACHE_BYTES:
            path.unlink(missing_ok=True)

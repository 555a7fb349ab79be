"""Features of all images of a dataset, and a cache of them on disk."""

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
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from tapnet import __version__, hardware
from tapnet.backbones import Backbone
from tapnet.checkpoint import backbone_digest, tensors_digest
from tapnet.data import ImageSet
from tapnet.hardware import device_of, keep_freed_memory, resolve_precision, to_float_tensor
from tapnet.paths import write_atomically

CACHE_BYTES = 2 * 2**30  # beyond this the least recently used files are deleted
BATCH = 256
_ABANDONED_SECONDS = 3600.0  # no process takes that long to write a file of the cache
_DIGEST = "sha256"


class Embedder:
    """A copy of a backbone for inference: batch normalization folded into convolutions, channels last in memory.

    With `maps` the features are the backbone's last maps, otherwise its vectors. On a CPU the process keeps the memory
    that it frees from here on: mapping the activations in anew would take longer than computing them.
    """

    def __init__(self, backbone: Backbone, precision: str = "float32", maps: bool = False) -> None:
        self.backbone, self.maps = fused(backbone), maps
        self.device = device_of(backbone)
        self.half = resolve_precision(precision, self.device) == "bf16"
        self.feature_shape = backbone.map_shape if maps else (backbone.dim,)
        if self.device.type == "cpu":
            keep_freed_memory()

    @torch.inference_mode()
    def __call__(self, pixels: NDArray[np.uint8]) -> Tensor:
        """Return features (n, *feature_shape) in float32 of images (n, height, width, channels)."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            images = to_float_tensor(pixels, self.device)
            features: Tensor = self.backbone.maps(images) if self.maps else self.backbone(images)
        return features.float()


@torch.inference_mode()
def embed(backbone: Backbone, images: ImageSet, precision: str = "float32", maps: bool = False) -> Tensor:
    """Return features (n, *feature_shape) of every image, float32, on the backbone's device; processes share it."""
    embedder = Embedder(backbone, precision, maps)
    features = torch.zeros(len(images), *embedder.feature_shape, device=embedder.device)
    for start in range(hardware.rank() * BATCH, len(images), hardware.world_size() * BATCH):
        chosen = np.arange(start, min(start + BATCH, len(images)))
        features[start : start + BATCH] = embedder(images.gather(chosen))
    return hardware.all_reduce_sum(features)


def fused(backbone: Backbone) -> Backbone:
    """Return a copy in eval mode with batch normalization folded into the convolution before it."""
    network = copy.deepcopy(backbone).eval().requires_grad_(False)
    for block in network.modules():
        if isinstance(block, nn.Sequential):
            for index, (first, second) in enumerate(pairwise(list(block))):
                if isinstance(first, nn.Conv2d) and isinstance(second, nn.BatchNorm2d):
                    block[index], block[index + 1] = fuse_conv_bn_eval(first, second), nn.Identity()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def cached_features(
    backbone: Backbone, images: ImageSet, precision: str, folder: Path | None, maps: bool = False
) -> Tensor:
    """Return what `embed` returns, from a file in the folder, if there is one; else compute and write it."""
    if folder is None:
        return embed(backbone, images, precision, maps)
    feature_shape = backbone.map_shape if maps else (backbone.dim,)
    path = folder / f"{feature_key(backbone, images, precision, maps)}.safetensors"
    cached = _read(path, (len(images), *feature_shape))
    if not hardware.any_rank(cached is None):
        assert cached is not None
        return cached.to(device_of(backbone))
    features = embed(backbone, images, precision, maps)
    if hardware.rank() == 0:
        tensors = {"features": features.cpu().contiguous()}
        try:
            write_atomically(path, save(tensors, {_DIGEST: tensors_digest(tensors)}))
            _evict(folder)
        except OSError:
            pass  # a cache that cannot be written costs time, not the result
    return features


def feature_key(backbone: Backbone, images: ImageSet, precision: str, maps: bool = False) -> str:
    """Return a name that changes with the weights, the data and its preprocessing, precision, device and versions."""
    identity = [
        backbone_digest(backbone),
        [str(backbone), maps],
        [images.fingerprint, images.rotations, list(images.image_shape), len(images)],
        [precision, device_of(backbone).type],
        [__version__, torch.__version__],
    ]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def _read(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """Return the features in a file; `None` if it does not exist, is damaged or has another shape."""
    try:
        with safe_open(path, framework="pt") as file:
            digest, features = (file.metadata() or {}).get(_DIGEST), file.get_tensor("features")
        os.utime(path)
    except (SafetensorError, OSError, ValueError):
        return None
    whole = features.shape == shape and features.dtype == torch.float32
    return features if whole and tensors_digest({"features": features}) == digest else None


def _evict(folder: Path) -> None:
    """Delete temporary files of killed processes, and the least recently used files beyond CACHE_BYTES."""
    for path in folder.glob(".*.safetensors.*"):
        if time.time() - path.stat().st_mtime > _ABANDONED_SECONDS:
            path.unlink(missing_ok=True)
    files = sorted(folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime, reverse=True)
    total = 0
    for path in files:
        total += path.stat().st_size
        if total > CACHE_BYTES:
            path.unlink(missing_ok=True)

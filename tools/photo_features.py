"""Features of networks for photographs, whatever their metric: images are embedded once and cached without it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapnet.backbones import Backbone, make_backbone
from tapnet.backbones.efficientnet_lite import EfficientNetLite
from tapnet.data import ImageSet, load_dataset
from tapnet.evaluation.embedding import cached_features
from tapnet.hardware import resolve_precision
from tapnet.inference.networks import EmbeddingModel
from tapnet.paths import feature_cache

POWER = 0.5  # of the averaged features before the metric


def square_roots(name: str, images: ImageSet, precision: str = "auto") -> Tensor:
    """Return the square roots (n, 1280) of the averaged features of EfficientNet-Lite, scaled to length 10."""
    backbone = make_backbone(name, images.image_shape, power=POWER)
    return cached_features(backbone, images, resolve_precision(precision, torch.device("cpu")), feature_cache())


@torch.inference_mode()
def network_features(backbone: Backbone, images: ImageSet, precision: str) -> Tensor:
    """Return the features (n, dim) of every image; a metric is applied to cached features without one."""
    if not isinstance(backbone, EfficientNetLite) or not backbone.plain_share:
        return cached_features(backbone, images, precision, feature_cache())
    roots = square_roots(backbone.variant, images, precision)
    return backbone.pool(roots.square()[:, :, None, None])  # as maps of one pixel; their scale does not matter


def first_images(images: ImageSet, count: int | None) -> ImageSet:
    """Return the set with at most `count` images of each class, the first ones; all of them if it is `None`."""
    if count is None:
        return images
    places = [np.flatnonzero(images.row_labels == number)[:count] for number in range(len(images.names))]
    kept = np.sort(np.concatenate(places))
    return replace(
        images,
        rows=images.rows[kept],
        row_labels=images.row_labels[kept],
        fingerprint=f"{images.fingerprint}, the first {count} of each class",
    )


def set_features(
    network: EmbeddingModel, argument: str, root: str | None, count: int | None = None
) -> tuple[Tensor, NDArray[np.int64], dict[str, str]]:
    """Return features (n, dim) and labels (n,) of SET[:SPLIT,SPLIT] (default: test), and the fingerprint per split.

    With `count`, only the first so many images of each class are embedded.
    """
    name, _, splits = argument.partition(":")
    features, labels, fingerprints, seen = [], [], {}, 0
    for split in (splits or "test").split(","):
        images = first_images(load_dataset(name, split, root), count)
        features.append(network_features(network.method.backbone, images, network.precision).cpu())
        labels.append(images.labels + seen)
        fingerprints[split] = images.fingerprint
        seen += len(images.names)
    return torch.cat(features), np.concatenate(labels), fingerprints

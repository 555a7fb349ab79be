"""Features of networks for photographs, whatever their metric: images are embedded once and cached without it."""

from __future__ import annotations

import torch
from torch import Tensor

from tapnet.backbones import Backbone, make_backbone
from tapnet.backbones.efficientnet_lite import EfficientNetLite
from tapnet.data import ImageSet
from tapnet.evaluation.embedding import cached_features, default_cache
from tapnet.hardware import resolve_precision

POWER = 0.5  # of the averaged features before the metric


def square_roots(name: str, images: ImageSet, precision: str = "auto") -> Tensor:
    """Return the square roots (n, 1280) of the averaged features of EfficientNet-Lite, scaled to length 10."""
    backbone = make_backbone(name, images.image_shape, power=POWER)
    return cached_features(backbone, images, resolve_precision(precision, torch.device("cpu")), default_cache())


@torch.inference_mode()
def network_features(backbone: Backbone, images: ImageSet, precision: str) -> Tensor:
    """Return the features (n, dim) of every image; a metric is applied to cached features without one."""
    if not isinstance(backbone, EfficientNetLite) or not backbone.plain_share:
        return cached_features(backbone, images, precision, default_cache())
    roots = square_roots(backbone.variant.name, images, precision)
    return backbone.pool(roots.square()[:, :, None, None])  # as maps of one pixel; their scale does not matter

"""Embedding networks. To add one: a file here, a line in `BACKBONES`, a test file."""

from __future__ import annotations

from typing import Any

from tapnet.backbones.base import Backbone, ImageShape, PrecomputedFeatures, check_image_shape, wrap_backbone
from tapnet.backbones.conv4 import Conv4
from tapnet.backbones.efficientnet_lite import EfficientNetLite0, EfficientNetLite2
from tapnet.backbones.hugging_face import HuggingFace
from tapnet.backbones.resnet12 import ResNet12, ResNet12Small
from tapnet.errors import UserError
from tapnet.registry import build

BACKBONES: dict[str, type[Backbone]] = {
    "conv4": Conv4,
    "resnet12": ResNet12,
    "resnet12-small": ResNet12Small,
    "efficientnet-lite0": EfficientNetLite0,
    "efficientnet-lite2": EfficientNetLite2,
    "hf": HuggingFace,
}

PRETRAINED = tuple(name for name, kind in BACKBONES.items() if kind.pretrained)  # checkpoints leave out their weights
METRIC = "backbone.metric.weight"  # the exception: a linear layer that is learned over pretrained features

__all__ = [
    "BACKBONES",
    "METRIC",
    "PRETRAINED",
    "Backbone",
    "Conv4",
    "ImageShape",
    "PrecomputedFeatures",
    "ResNet12",
    "ResNet12Small",
    "make_backbone",
    "wrap_backbone",
]


def make_backbone(name: str, image_shape: ImageShape, **options: Any) -> Backbone:
    """Return a freshly initialized network for images of this shape (channels, height, width)."""
    if name not in BACKBONES:
        raise UserError(f"A backbone is one of {', '.join(BACKBONES)}, got {name!r}.")
    check_image_shape(image_shape)
    return build(f"Backbone {name!r}", BACKBONES[name], image_shape, options)

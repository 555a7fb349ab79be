"""Embedding networks. To add one: a file here, a line in `BACKBONES`, a test file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from numbers import Integral
from typing import Any, TypeVar

from tapnet.backbones.base import Backbone, ImageShape, PrecomputedFeatures, check_image_shape, wrap_backbone
from tapnet.backbones.conv4 import Conv4
from tapnet.backbones.efficientnet_lite import EfficientNetLite0, EfficientNetLite2
from tapnet.backbones.hugging_face import HuggingFace
from tapnet.backbones.resnet12 import ResNet12, ResNet12Small
from tapnet.errors import UserError

T = TypeVar("T")

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

__all__ = ["BACKBONES", "METRIC", "PRETRAINED", "Backbone", "Conv4", "ImageShape", "PrecomputedFeatures", "ResNet12"]
__all__ += ["ResNet12Small", "build", "make_backbone", "options_of", "wrap_backbone"]


def make_backbone(name: str, image_shape: ImageShape, **options: Any) -> Backbone:
    """Return a freshly initialized network for images of this shape (channels, height, width)."""
    if name not in BACKBONES:
        raise UserError(f"A backbone is one of {', '.join(BACKBONES)}, got {name!r}.")
    check_image_shape(image_shape)
    return build(f"Backbone {name!r}", BACKBONES[name], image_shape, options)


def build(what: str, kind: Callable[..., T], first: object, options: Mapping[str, Any]) -> T:
    """Return `kind(first, **options)`; raise UserError that names unknown, missing or wrong options."""
    parameters = options_of(kind)
    unknown = [name for name in options if name not in parameters]
    missing = [name for name, option in parameters.items() if option.default is option.empty and name not in options]
    if unknown:
        raise UserError(f"{what} has no option {', '.join(unknown)}; it has {', '.join(parameters) or 'none'}.")
    if missing:
        raise UserError(f"{what} needs the option {', '.join(missing)}.")
    for name, value in options.items():
        annotation, is_bool = parameters[name].annotation, isinstance(value, bool)
        if annotation in (bool, "bool") and not is_bool:
            raise UserError(f"{what}: `{name}` is true or false, got {value!r}.")
        if annotation in (int, "int") and (is_bool or not isinstance(value, Integral)):
            raise UserError(f"{what}: `{name}` is a whole number, got {value!r}.")
    try:
        return kind(first, **options)
    except TypeError as error:
        raise UserError(f"{what} does not take these options: {error}.") from error


def options_of(kind: Callable[..., object]) -> dict[str, Parameter]:
    """Return the parameters of a class after the first, with those of its base class if it passes `**options` on."""
    _, *parameters = signature(kind).parameters.values()
    named = {option.name: option for option in parameters if option.kind is not option.VAR_KEYWORD}
    if isinstance(kind, type) and len(named) < len(parameters):
        return options_of(kind.__mro__[1]) | named
    return named

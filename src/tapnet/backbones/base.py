"""What a backbone is: images in, one feature vector each out, its length known before the first image."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from tapnet.errors import UserError

EPSILON, MOMENTUM = 2e-5, 0.1  # the authors' batch normalization: eps 2e-5, running average decay 0.9
BLOCKS = 4
FEATURE_LENGTH = 10.0  # of the features of a pretrained network, whose own lengths say little

ImageShape = tuple[int, int, int]


class Backbone(nn.Module):
    """`maps` gives the last feature maps, `forward` makes one vector of length `dim` of them."""

    dim: int
    image_shape: ImageShape  # (channels, height, width)
    map_shape: tuple[int, int, int]  # (channels, height, width) of the last maps
    bf16_maps = False  # whether `fit` and `predict` compute its maps in bf16 where the hardware multiplies in it
    pretrained = False  # whether its weights were trained on ImageNet by others
    four_rotations = False  # whether it sees every image in its four rotations

    def maps(self, images: Tensor) -> Tensor:
        raise NotImplementedError

    def pool(self, maps: Tensor) -> Tensor:
        raise NotImplementedError

    def configuration(self) -> dict[str, Any]:
        """Return what decides the features besides the weights, as plain values: part of the network's digest."""
        return {"backbone": type(self).__name__, "image_shape": list(self.image_shape), "options": self.extra_repr()}

    def forward(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.image_shape:
            raise UserError(
                f"This backbone takes images of {'×'.join(map(str, self.image_shape))} (channels×height×width), got a "
                f"batch of shape {tuple(images.shape)}."
            )
        return self.pool(self.maps(images))


def convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """A convolution that keeps the size, or divides it by the stride and rounds up, initialized LeCun normal.

    It has no bias: batch normalization would cancel it.
    """
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    if not layer.weight.is_meta:  # there nothing is drawn, and drawing would import PyTorch's compiler, seconds long
        nn.init.normal_(layer.weight, std=1 / math.sqrt(inputs * kernel * kernel))
    return layer


def normalization(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=EPSILON, momentum=MOMENTUM)


def halving() -> nn.MaxPool2d:
    """Max pooling 2×2 that keeps the last partial window, as Chainer does: 84 → 42 → 21 → 11 → 6."""
    return nn.MaxPool2d(2, ceil_mode=True)


def halved(size: int, times: int) -> int:
    for _ in range(times):
        size = -(-size // 2)
    return size


def four(values: Sequence[float] | float, name: str) -> tuple[float, ...]:
    """One value a block, from four or from one for all."""
    values = (values,) * BLOCKS if isinstance(values, int | float) else tuple(values)
    if len(values) != BLOCKS:
        raise UserError(f"`{name}` needs one value or {BLOCKS}, one per block, got {list(values)}.")
    return values

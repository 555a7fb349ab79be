"""The base class of backbones, which map images to feature vectors of a length known in advance, and their parts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.errors import NonFiniteError, UserError

EPSILON, MOMENTUM = 2e-5, 0.1  # the authors' batch normalization: eps 2e-5, running average decay 0.9
BLOCKS = 4
FEATURE_LENGTH = 10.0  # of the features of pretrained networks, whose own lengths carry little information
LONGEST = 1e18  # in float32 the squared distance of two longer features may be infinite

ImageShape = tuple[int, int, int]


class Backbone(nn.Module):
    """A network whose `maps` returns the last feature maps, and `forward` one vector of length `dim` per image."""

    dim: int
    image_shape: ImageShape  # (channels, height, width)
    map_shape: tuple[int, int, int]  # (channels, height, width) of the last maps
    bf16_maps = False  # whether `fit` and `predict` compute its maps in bf16 on hardware that supports it
    pretrained = False  # whether it comes with weights trained on ImageNet
    four_rotations = False  # whether it processes every image in four rotations
    branches = 1  # networks side by side that it consists of
    normalize = False  # whether `pool` ends with a FeatureNormalization

    def maps(self, images: Tensor) -> Tensor:
        raise NotImplementedError

    def pool(self, maps: Tensor) -> Tensor:
        raise NotImplementedError

    def configuration(self) -> dict[str, Any]:
        """Return all that affects the features besides the weights, as plain values, for the network's digest."""
        return {"backbone": type(self).__name__, "image_shape": list(self.image_shape), "options": self.extra_repr()}

    def forward(self, images: Tensor) -> Tensor:
        if tuple(images.shape[1:]) != self.image_shape:
            shape = "×".join(map(str, self.image_shape))
            got = f"got a batch of shape {tuple(images.shape)}"
            raise UserError(f"This backbone takes images of {shape} (channels×height×width), {got}.")
        return self.pool(self.maps(images))


class PrecomputedFeatures(Backbone):
    """Returns its input: feature vectors in place of images."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim, self.image_shape, self.map_shape = dim, (dim, 1, 1), (dim, 1, 1)

    def forward(self, features: Tensor) -> Tensor:
        return features


class WrappedBackbone(Backbone):
    """A module from images (n, *image_shape) to vectors or maps as a backbone, for example of timm::

        network = timm.create_model("resnet18", pretrained=True, num_classes=0)
        method = TapNet(wrap_backbone(network, (3, 224, 224)), num_references=20)

    The module gets images in [0, 1] and has to normalize them itself if it needs to. Maps are averaged.
    """

    def __init__(self, module: nn.Module, image_shape: ImageShape) -> None:
        super().__init__()
        check_image_shape(image_shape)
        self.module, self.image_shape, training = module, image_shape, module.training
        first = next(module.parameters(), torch.zeros(()))
        with torch.no_grad():
            output = module.eval()(first.new_zeros(1, *image_shape))
        module.train(training)
        if not isinstance(output, Tensor) or output.dim() not in (2, 4):
            shape = tuple(output.shape) if isinstance(output, Tensor) else type(output).__name__
            raise UserError(
                "A backbone returns vectors (n, dim) or maps (n, channels, height, width) as one tensor, this module "
                f"returned {shape}: take its classifier off, or wrap it in a module that selects one output."
            )
        self.map_shape = (*output.shape[1:], 1, 1)[:3]
        self.dim = self.map_shape[0]

    def extra_repr(self) -> str:
        return type(self.module).__qualname__

    def maps(self, images: Tensor) -> Tensor:
        output: Tensor = self.module(images)
        return output if output.dim() == 4 else output[:, :, None, None]

    def pool(self, maps: Tensor) -> Tensor:
        return maps.mean(dim=(2, 3))


wrap_backbone = WrappedBackbone


class FeatureNormalization(nn.Module):
    r"""Center features and scale them to the same length: $\sqrt d\,(f - \mu)/\|f - \mu\|$ for $f$ of (n, d).

    The CL2N of SimpleShot (Wang et al., 2019). As in batch normalization, $\mu$ is the mean of the batch in training
    (support and query images together) and its running average afterwards.
    """

    running_mean: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(dim))

    def forward(self, features: Tensor) -> Tensor:
        features = features.to(torch.promote_types(features.dtype, torch.float32))
        mean = self.running_mean
        if self.training:
            mean = features.mean(dim=0)
            self.running_mean.lerp_(mean.detach(), MOMENTUM)
        return F.rms_norm(features - mean, features.shape[-1:])


def convolution(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, padding: int | None = None
) -> nn.Conv2d:
    """Return a convolution with LeCun-normal weights, by default "same" padding, and no bias before a normalization."""
    padding = kernel // 2 if padding is None else padding
    layer = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    if not layer.weight.is_meta:  # `normal_` on the meta device would import PyTorch's compiler, which takes seconds
        nn.init.normal_(layer.weight, std=1 / math.sqrt(inputs // groups * kernel * kernel))
    return layer


def normalization(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=EPSILON, momentum=MOMENTUM)


def halving() -> nn.MaxPool2d:
    """Return 2×2 max pooling that keeps the last partial window, as in Chainer: 84 → 42 → 21 → 11 → 6."""
    return nn.MaxPool2d(2, ceil_mode=True)


def halved(size: int, times: int, padded: bool = True) -> int:
    """Return the size after so many blocks; unless `padded`, each takes off two rows and rounds down."""
    for _ in range(times):
        size = -(-size // 2) if padded else max(size - 2, 0) // 2
    return size


def block_sizes(channels: int, widths: Sequence[int], dropout: Sequence[float] | float) -> list[tuple[int, int, float]]:
    """Return input channels, output channels and dropout rate of each block; one rate may be for all."""
    rates = (dropout,) * BLOCKS if isinstance(dropout, int | float) else tuple(dropout)
    if not isinstance(widths, Sequence) or len(widths) != BLOCKS or any(width < 1 for width in widths):
        raise UserError(f"`widths` needs {BLOCKS} values from 1 on, one per block, got {widths}.")
    if len(rates) != BLOCKS:
        raise UserError(f"`dropout` needs one value or {BLOCKS}, one per block, got {list(rates)}.")
    return list(zip((channels, *widths[:-1]), widths, rates, strict=True))


def changed_options(**options: tuple[Any, Any]) -> str:
    """Return the options whose value differs from their default, each given as (value, default), as text."""
    return ", ".join(f"{name}={value}" for name, (value, default) in options.items() if value != default)


def check_image_shape(image_shape: ImageShape) -> None:
    """Raise UserError unless the shape is (channels, height, width)."""
    if len(image_shape) != 3 or min(image_shape) < 1:
        raise UserError(f"An image shape is (channels, height, width), each at least 1, got {tuple(image_shape)}.")
    height, width, channels = image_shape
    if channels in (1, 3, 4) and min(height, width) > 4:
        meant = f"got {tuple(image_shape)}: did you mean {(channels, height, width)}?"
        raise UserError(f"An image shape is (channels, height, width), {meant}")


def check_features(features: Tensor) -> Tensor:
    """Return the features (n, ...); raise NonFiniteError if some are not finite, or so long that distances overflow."""
    wrong = ~(torch.linalg.vector_norm(features.flatten(1), dim=1) <= LONGEST)  # NaN is not below anything
    if wrong.any():
        raise NonFiniteError(
            f"The features of {int(wrong.sum())} of {len(features)} images contain NaN, infinity or values too large "
            f"to compare (expected a norm of at most {LONGEST:g}): the network has diverged, or vectors of your own "
            "need to be scaled down."
        )
    return features

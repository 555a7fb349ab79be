"""ResNet-12, the paper's network, and the smaller version of Tables 3 and 5."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones import base
from tapnet.backbones.base import BLOCKS, Backbone, ImageShape, changed_options, halved, normalization
from tapnet.errors import UserError


class ResNet12(Backbone):
    """Four residual blocks of three 3×3 convolutions, 3×3 shortcuts, global average pooling; 512 features.

    `flatten` flattens the last maps, as Conv4 does, instead of averaging them. With `four_rotations` the same blocks
    process an image rotated by 0, 90, 180 and 270 degrees: four times the maps and the work, but no more weights.
    `normalize` centers the features and scales them to the same length. `branches` divides the channels of every block
    into so many networks side by side, which share only the image: all convolutions but those over the image have so
    many times fewer weights.
    """

    default_widths: tuple[int, ...] = (64, 128, 256, 512)
    shortcut_kernel = 3

    def __init__(
        self,
        image_shape: ImageShape,
        widths: Sequence[int] | None = None,
        dropout: Sequence[float] | float = 0.0,
        flatten: bool = False,
        four_rotations: bool = False,
        normalize: bool = False,
        branches: int = 1,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.image_shape = (channels, height, width)
        widths = self.default_widths if widths is None else tuple(widths)
        blocks = base.block_sizes(channels, widths, dropout)
        if four_rotations and height != width:
            raise UserError(f"`four_rotations` needs square images, got {height}×{width}: leave it out.")
        if branches < 1 or any(width % branches for width in widths):
            raise UserError(f"`branches` needs to divide all `widths`, {list(widths)}, got {branches}.")
        input_groups = [1, *[branches] * (BLOCKS - 1)]  # every branch sees the image
        layers = zip(blocks, input_groups, strict=True)
        self.blocks = nn.Sequential(
            *(Block(*sizes, self.shortcut_kernel, groups, branches) for sizes, groups in layers)
        )
        self.flatten, self.four_rotations, self.branches = flatten, four_rotations, branches
        channels = widths[-1] * (4 if four_rotations else 1)
        self.map_shape = (channels, halved(height, BLOCKS), halved(width, BLOCKS))
        self.dim = math.prod(self.map_shape) if flatten else channels
        self.normalize = normalize
        self.normalization = base.FeatureNormalization(self.dim) if normalize else nn.Identity()

    def extra_repr(self) -> str:
        branches = changed_options(branches=(self.branches, 1))
        options = f"flatten={self.flatten}, four_rotations={self.four_rotations}"  # they do not show in the weights
        return ", ".join(filter(None, (options, branches)))

    def maps(self, images: Tensor) -> Tensor:
        if not self.four_rotations:
            return self.blocks(images)
        rotated = self.blocks(torch.cat([images.rot90(k, (2, 3)) for k in range(4)]))  # (4·n, C, h, w)
        by_rotation = rotated.unflatten(0, (4, -1))  # a `chunk` would fix n in an ONNX file
        return torch.cat([by_rotation[k].rot90(-k, (2, 3)) for k in range(4)], dim=1)  # upright again

    def pool(self, maps: Tensor) -> Tensor:
        return self.normalization(maps.flatten(1) if self.flatten else maps.mean(dim=(2, 3)))


class ResNet12Small(ResNet12):
    """Fewer channels and 1×1 shortcuts, as in SNAIL; 256 features."""

    default_widths = (64, 96, 128, 256)
    shortcut_kernel = 1


class Block(nn.Module):
    """Three convolutions with a shortcut, then pooling, ReLU and dropout."""

    def __init__(
        self, inputs: int, outputs: int, dropout: float, shortcut_kernel: int, input_groups: int, groups: int
    ) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(base.convolution(inputs, outputs, groups=input_groups), normalization(outputs), nn.ReLU(inplace=True)),
            *(base.convolution(outputs, outputs, groups=groups), normalization(outputs), nn.ReLU(inplace=True)),
            *(base.convolution(outputs, outputs, groups=groups), normalization(outputs)),
        )
        self.shortcut = nn.Sequential(
            base.convolution(inputs, outputs, shortcut_kernel, groups=input_groups), normalization(outputs)
        )
        self.pool = base.halving()
        self.dropout = nn.Dropout(dropout)

    def forward(self, images: Tensor) -> Tensor:
        joined = self.layers(images) + self.shortcut(images)
        return self.dropout(F.relu(self.pool(joined)))  # as in Conv4, ReLU after the pooling

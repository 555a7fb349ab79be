"""Conv4: four convolutional blocks, as in Matching and Prototypical Networks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from tapnet.backbones import base
from tapnet.backbones.base import BLOCKS, Backbone, ImageShape, changed_options, halved, normalization
from tapnet.errors import UserError


class Conv4(Backbone):
    """Four blocks of 3×3 convolution, batch normalization, ReLU and 2×2 max pooling; the last maps flattened.

    64 channels at 84×84 give 64·6·6 = 2304 features. `average_top` adds the 2×2 average pooling that the paper puts on
    top for tieredImageNet (576 features). Only the first `pooled_blocks` blocks pool: two in Relation Networks. Unless
    `padded`, these have no padding and drop the last partial window, as there: 84 → 41 → 19 and 28 → 13 → 5.
    `normalize` centers the features and scales them to the same length, √dim.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        widths: Sequence[int] = (64, 64, 64, 64),
        dropout: Sequence[float] | float = 0.0,
        average_top: bool = False,
        pooled_blocks: int = BLOCKS,
        padded: bool = True,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.image_shape = (channels, height, width)
        blocks = base.block_sizes(channels, widths, dropout)
        if not 0 <= pooled_blocks <= BLOCKS:
            raise UserError(f"`pooled_blocks` is from 0 to {BLOCKS}, got {pooled_blocks}.")
        self.average_top, self.pooled_blocks, self.padded = average_top, pooled_blocks, padded
        self.blocks = nn.Sequential(*(_block(*sizes, k < pooled_blocks, padded) for k, sizes in enumerate(blocks)))
        self.top = nn.AvgPool2d(2) if average_top else nn.Identity()
        rows, columns = (halved(size, pooled_blocks, padded) for size in (height, width))
        if min(rows, columns) < 1:
            raise UserError(f"Images of {height}×{width} are too small for {pooled_blocks} blocks without padding.")
        self.map_shape = (widths[-1], rows, columns)
        self.dim = widths[-1] * (rows // 2) * (columns // 2) if average_top else widths[-1] * rows * columns
        if self.dim == 0:
            raise UserError(f"Images of {height}×{width} are too small for the average pooling on top.")
        self.normalize = normalize
        self.normalization = base.FeatureNormalization(self.dim) if normalize else nn.Identity()

    def extra_repr(self) -> str:
        """Return the options that differ from their defaults and do not show in the weights."""
        options = {"average_top": (self.average_top, False), "pooled_blocks": (self.pooled_blocks, BLOCKS)}
        return changed_options(**options, padded=(self.padded, True))

    def maps(self, images: Tensor) -> Tensor:
        return self.blocks(images)

    def pool(self, maps: Tensor) -> Tensor:
        return self.normalization(self.top(maps).flatten(1))


def _block(inputs: int, outputs: int, dropout: float, pooled: bool, padded: bool) -> nn.Sequential:
    """Return a block with ReLU after the pooling: they commute, and there it is a quarter of the work."""
    pooling = nn.Identity() if not pooled else base.halving() if padded else nn.MaxPool2d(2)
    layers = base.convolution(inputs, outputs, padding=int(padded or not pooled)), normalization(outputs), pooling
    return nn.Sequential(*layers, nn.ReLU(inplace=True), nn.Dropout(dropout))

"""Conv4: four convolutional blocks, as in Matching and Prototypical Networks."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from tapnet.backbones.base import BLOCKS, Backbone, ImageShape, convolution, four, halved, halving, normalization


class Conv4(Backbone):
    """Four blocks of 3×3 convolution, batch normalization, ReLU and 2×2 max pooling; the last maps flattened.

    64 channels at 84×84 give 64·6·6 = 2304 features. `average_top` adds the 2×2 average pooling that the paper puts on
    top for tieredImageNet (576 features). `pooled_blocks` is how many of the blocks pool, the first ones: two in
    Relation Networks.
    """

    def __init__(
        self,
        image_shape: ImageShape,
        widths: Sequence[int] = (64, 64, 64, 64),
        dropout: Sequence[float] | float = 0.0,
        average_top: bool = False,
        pooled_blocks: int = BLOCKS,
    ) -> None:
        super().__init__()
        channels, height, width = image_shape
        self.image_shape = (channels, height, width)
        inputs = (channels, *widths[:-1])
        rates = four(dropout, "dropout")
        if len(widths) != BLOCKS:
            raise ValueError(f"`widths` needs {BLOCKS} values, one a block, got {list(widths)}.")
        if not 0 <= pooled_blocks <= BLOCKS:
            raise ValueError(f"`pooled_blocks` is from 0 to {BLOCKS}, got {pooled_blocks}.")
        pooled = [index < pooled_blocks for index in range(BLOCKS)]
        self.blocks = nn.Sequential(*map(_block, inputs, widths, rates, pooled))
        self.top = nn.AvgPool2d(2) if average_top else nn.Identity()
        self.map_shape = (widths[-1], halved(height, pooled_blocks), halved(width, pooled_blocks))
        rows, columns = (size // (2 if average_top else 1) for size in self.map_shape[1:])
        self.dim = widths[-1] * rows * columns
        if self.dim == 0:
            raise ValueError(f"Images of {height}×{width} are too small for the average pooling on top.")

    def maps(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(images)
        return features

    def pool(self, maps: Tensor) -> Tensor:
        vectors: Tensor = self.top(maps).flatten(1)
        return vectors


def _block(inputs: int, outputs: int, dropout: float, pooled: bool) -> nn.Sequential:
    """ReLU stands after the pooling: they commute, and there it has a quarter of the work."""
    pooling = halving() if pooled else nn.Identity()
    return nn.Sequential(
        convolution(inputs, outputs), normalization(outputs), pooling, nn.ReLU(inplace=True), nn.Dropout(dropout)
    )

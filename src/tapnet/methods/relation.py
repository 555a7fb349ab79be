"""Learning to Compare: Relation Network for Few-Shot Learning.

Flood Sung, Yongxin Yang, Li Zhang, Tao Xiang, Philip H. S. Torr, Timothy M. Hospedales. CVPR 2018.
"""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones import Backbone
from tapnet.backbones.base import convolution, halved, halving, normalization
from tapnet.data.batches import EpisodeImages
from tapnet.errors import UserError
from tapnet.functional import widened
from tapnet.methods.base import EpisodeLoss, FunctionHead, Method, check_choice

WIDTH, HIDDEN = 64, 8  # channels of the relation module, units of its first linear layer


class RelationNetwork(Method):
    """A learned module compares the maps of a query with those of each class; trained by squared error.

    The maps of a class are summed over its shots, as published, so a network suits the shot it was trained with; with
    `reduce: mean` it suits any. The relation score is the sigmoid of the logit; its target is 1 for the class of the
    query and 0 for the others. In eval mode batch normalization uses running statistics (in the authors' code, those of
    the test batch), so queries do not affect each other.
    """

    feature_maps = True

    def __init__(self, backbone: Backbone, reduce: str = "sum", padding: int | None = None) -> None:
        super().__init__(backbone)
        check_choice("reduce", reduce, ("sum", "mean"))
        self.reduce = reduce
        self.relation = RelationModule(backbone.map_shape, padding)

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> FunctionHead:
        members = self.members(support, labels, way)
        if self.reduce == "mean":
            members = members / members.sum(dim=-2, keepdim=True)
        with torch.autocast(support.device.type, enabled=False):
            class_maps = members.mT @ widened(support).flatten(-3)
        return FunctionHead(partial(self.relation, class_maps.unflatten(-1, support.shape[-3:])))

    def loss(self, episode: EpisodeImages) -> EpisodeLoss:
        """Return the mean squared error of the scores of all pairs of query and class."""
        support, query = self.embed(episode.images, validate=False).split(episode.sizes)
        logits = widened(self.logits(support, episode.support_labels, query, episode.way))
        targets = F.one_hot(episode.query_labels, episode.way).to(logits.dtype)
        return EpisodeLoss(F.mse_loss(logits.sigmoid(), targets), logits)


class RelationModule(nn.Module):
    """Two convolutional blocks and two linear layers over the concatenated maps of a class and a query.

    A convolution of concatenated channels is the sum of two convolutions, so the first one runs once per class and once
    per query, not once per pair.
    """

    def __init__(self, map_shape: tuple[int, int, int], padding: int | None = None) -> None:
        super().__init__()
        if padding not in (None, 0, 1):
            raise UserError(f"`padding` is 0 or 1, got {padding}.")
        channels, *sizes = map_shape
        for _ in range(2):
            sizes = [halved(size, 1) if padding is None else (size + 2 * padding - 2) // 2 for size in sizes]
        if min(sizes) < 1:
            height, width = map_shape[1:]
            raise UserError(f"Maps of {height}×{width} are too small for a relation module with padding {padding}.")
        self.first = convolution(2 * channels, WIDTH, padding=padding)
        pooling = halving() if padding is None else nn.MaxPool2d(2)
        self.rest = nn.Sequential(
            *(normalization(WIDTH), nn.ReLU(), pooling, convolution(WIDTH, WIDTH, padding=padding)),
            *(normalization(WIDTH), nn.ReLU(), pooling, nn.Flatten()),
            *(nn.Linear(WIDTH * math.prod(sizes), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 1)),
        )

    def forward(self, class_maps: Tensor, query: Tensor) -> Tensor:
        """Return logits (..., query, way) for class maps (..., way, c, h, w) and query maps (..., query, c, h, w)."""
        classes, queries = (
            F.conv2d(maps.flatten(0, -4), weight, padding=self.first.padding).unflatten(0, maps.shape[:-3])
            for maps, weight in zip((class_maps, query), self.first.weight.chunk(2, dim=1), strict=True)
        )
        pairs = classes.unsqueeze(-5) + queries.unsqueeze(-4)  # (..., query, way, width, h, w)
        scores: Tensor = self.rest(pairs.flatten(0, -4))
        return scores.view(pairs.shape[:-3])

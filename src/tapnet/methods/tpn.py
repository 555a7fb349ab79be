"""Learning to Propagate Labels: Transductive Propagation Network for Few-Shot Learning.

Yanbin Liu, Juho Lee, Minseop Park, Saehoon Kim, Eunho Yang, Sung Ju Hwang, Yi Yang. ICLR 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tapnet.backbones import Backbone
from tapnet.backbones.base import convolution, halved, halving, normalization
from tapnet.data.batches import EpisodeImages
from tapnet.errors import UserError
from tapnet.functional import euclidean_distances, widened
from tapnet.methods.base import EpisodeLoss, FunctionHead, Method, cross_entropy

WIDTH, HIDDEN = 64, 8  # of the network that computes the length scales
EPSILON = 1e-6


def similarities(features: Tensor, scales: Tensor, neighbors: int) -> Tensor:
    r"""Return the graph W (..., n, n) over features (..., n, dim) with length scales (..., n).

    $W_{ij} = \exp(-\frac12 d(f_i/\sigma_i, f_j/\sigma_j))$ if one of the two is among the nearest `neighbors` of the
    other (itself included), else 0; d is the mean of the squared differences, as in the authors' code.
    """
    scaled = features / (scales + EPSILON).unsqueeze(-1)
    distances = euclidean_distances(scaled, scaled).square() / features.shape[-1]
    weights = (-distances / 2).exp()
    nearest = weights.detach().topk(min(neighbors, weights.shape[-1]), dim=-1).indices
    kept = torch.zeros_like(weights, dtype=torch.bool).scatter(-1, nearest, True)
    return weights * (kept | kept.mT)


def propagate(weights: Tensor, labels: Tensor, alpha: float) -> Tensor:
    r"""Return $(I - \alpha S)^{-1} Y$, $S = D^{-1/2} W D^{-1/2}$: labels Y (..., n, way) spread over the graph W."""
    degrees = weights.sum(dim=-1).rsqrt()
    normalized = degrees.unsqueeze(-1) * weights * degrees.unsqueeze(-2)
    system = torch.eye(weights.shape[-1], dtype=weights.dtype, device=weights.device) - alpha * normalized
    return torch.linalg.solve(system, labels)


class TransductivePropagation(Method):
    """Labels propagate in closed form from the support set to all queries of the episode at once.

    A network computes a length scale for each image. The graph keeps the nearest `neighbors` of each node, itself
    included, as in the authors' code. `alpha` is how far labels spread. The loss counts support set and queries alike.
    """

    feature_maps = True
    transductive = True

    def __init__(self, backbone: Backbone, neighbors: int = 20, alpha: float = 0.99) -> None:
        super().__init__(backbone)
        if neighbors < 2:
            raise UserError(f"`neighbors` counts the node itself, so it needs to be at least 2, got {neighbors}.")
        if not 0 < alpha < 1:
            raise UserError(f"`alpha` needs to be between 0 and 1, got {alpha}.")
        self.neighbors, self.alpha = neighbors, alpha
        self.length_scale = LengthScale(backbone.map_shape)

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> FunctionHead:
        members = self.members(support, labels, way)
        return FunctionHead(lambda query: self.all_logits(support, members, query)[..., labels.shape[-1] :, :])

    def all_logits(self, support: Tensor, members: Tensor, query: Tensor) -> Tensor:
        """Return scores (..., n + query, way) of the support set, whose one-hot labels are `members`, and queries."""
        maps = torch.cat([widened(support), query.to(members.dtype)], dim=-4)
        scales = widened(self.length_scale(maps))
        with torch.autocast(query.device.type, enabled=False):
            weights = similarities(maps.flatten(-3), scales, self.neighbors)
            unlabeled = members.new_zeros(*query.shape[:-3], members.shape[-1])
            return propagate(weights, torch.cat([members, unlabeled], dim=-2), self.alpha)

    def loss(self, episode: EpisodeImages) -> EpisodeLoss:
        """Return the cross-entropy of support set and queries."""
        support, query = self.embed(episode.images, validate=False).split(episode.sizes)
        logits = self.all_logits(support, self.members(support, episode.support_labels, episode.way), query)
        loss = cross_entropy(logits, torch.cat([episode.support_labels, episode.query_labels]))
        return EpisodeLoss(loss, logits[len(support) :])


class LengthScale(nn.Module):
    """The length scale of each image, from its maps: two convolutional blocks and two linear layers."""

    def __init__(self, map_shape: tuple[int, int, int]) -> None:
        super().__init__()
        channels, height, width = map_shape
        last = nn.Linear(HIDDEN, 1)
        nn.init.ones_(last.bias)  # starts near 1: at 0 no two images are similar
        self.layers = nn.Sequential(
            *(convolution(channels, WIDTH), normalization(WIDTH), nn.ReLU(), halving()),
            *(convolution(WIDTH, 1), normalization(1), nn.ReLU(), halving()),
            *(nn.Flatten(), nn.Linear(halved(height, 2) * halved(width, 2), HIDDEN), nn.ReLU(), last),
        )

    def forward(self, maps: Tensor) -> Tensor:
        """Return length scales (..., n) of maps (..., n, channels, height, width)."""
        scales: Tensor = self.layers(maps.flatten(0, -4))
        return scales.view(maps.shape[:-3])

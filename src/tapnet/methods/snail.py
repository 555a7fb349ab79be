"""A Simple Neural Attentive Meta-Learner.

Nikhil Mishra, Mostafa Rohaninejad, Xi Chen, Pieter Abbeel. ICLR 2018.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tapnet.backbones import Backbone
from tapnet.data.batches import EpisodeImages, class_labels
from tapnet.errors import UserError
from tapnet.methods.base import EpisodeLoss, FixedWayMethod, FunctionHead, cross_entropy, perceptron

FILTERS = 128  # of each dense block
ATTENTION = ((64, 32), (256, 128), (512, 256))  # sizes of keys and values


class SNAIL(FixedWayMethod):
    """Temporal convolutions and causal attention over the episode as a sequence: labeled images, then a query.

    An item is an embedded image and its label, one-hot, zero for the query; the output of the last item is its logits.
    No item sees a later one, so the support set is computed once for all queries. Training puts it in a random order,
    and takes each episode `relabelings` times, its classes numbered at random: the images pass the backbone once.
    `embedding` are the sizes of the layers between the backbone and the sequence; `shot` is the largest number of shots
    that the temporal convolutions reach across. With `drawn_shots` each training episode keeps from one to all of the
    support images of its classes, as in the paper: one network for every number of shots. `normalized` standardizes the
    features before the embedding, for a backbone that was trained otherwise and may give them any size. The dilations
    of the convolutions are 1, 2, 4, …: read literally the paper's begin with 2, and would reach only every second item.
    """

    def __init__(
        self,
        backbone: Backbone,
        way: int,
        shot: int = 5,
        embedding: Sequence[int] = (64,),
        relabelings: int = 1,
        drawn_shots: bool = False,
        normalized: bool = False,
    ) -> None:
        super().__init__(backbone, way)
        if min(shot, relabelings) < 1 or not embedding:
            got = f"{shot}, {relabelings} and {embedding}"
            raise UserError(f"SNAIL needs `shot` and `relabelings` of at least 1 and sizes in `embedding`, got {got}.")
        self.relabelings, self.drawn_shots = relabelings, drawn_shots
        self.normalization = nn.BatchNorm1d(backbone.dim) if normalized else None
        self.embedding = perceptron(backbone.dim, *embedding)
        dilations = [2**i for i in range(math.ceil(math.log2(way * shot + 1)))]
        channels = embedding[-1] + way
        self.layers = nn.ModuleList()
        for index, (keys, values) in enumerate(ATTENTION):
            for dilation in dilations if index else ():
                self.layers.append(DenseBlock(channels, FILTERS, dilation))
                channels += FILTERS
            self.layers.append(CausalAttention(channels, keys, values))
            channels += values
        self.classifier = nn.Linear(channels, way)

    def adapt(self, support: Tensor, labels: Tensor, way: int) -> FunctionHead:
        contexts = self.contexts(self.embedded(support), labels, way)
        return FunctionHead(lambda query: self.scores(contexts, self.embedded(query), way))

    def contexts(self, embedded: Tensor, labels: Tensor, way: int) -> list[Tensor]:
        """Return the embedded support set as each layer sees it, (..., support, channels)."""
        self.check_episode(embedded, labels, way)
        if self.training:
            order = torch.randperm(labels.shape[-1], device=labels.device)
            embedded, labels = embedded.index_select(labels.dim() - 1, order), labels.index_select(-1, order)
        contexts = [torch.cat([embedded, F.one_hot(labels, self.way).to(embedded.dtype)], dim=-1)]
        for layer in list(self.layers)[:-1]:
            contexts.append(layer(contexts[-1]))
        return contexts

    def scores(self, contexts: list[Tensor], embedded: Tensor, way: int) -> Tensor:
        """Return the logits of embedded queries, each the last item of a sequence of its own after the contexts."""
        items = torch.cat([embedded, embedded.new_zeros(*embedded.shape[:-1], self.way)], dim=-1)
        for layer, context in zip(self.layers, contexts, strict=True):
            items = layer(items, context)
        logits: Tensor = self.classifier(items)
        return logits[..., :way]

    def embedded(self, features: Tensor) -> Tensor:
        """Return the features (..., n, dim) as the sequence takes them, (..., n, size of the last layer)."""
        if self.normalization is not None:
            features = self.normalization(features.flatten(0, -2)).view_as(features)
        return self.embedding(features)

    def loss(self, episode: EpisodeImages) -> EpisodeLoss:
        support, query = self.embedded(self.embed(episode.images, validate=False)).split(episode.sizes)
        copies, device = self.relabelings, support.device
        shot = int(torch.randint(1, episode.shot + 1, ())) if self.drawn_shots else episode.shot
        support = support.unflatten(0, (episode.way, episode.shot))[:, :shot].flatten(0, 1)
        numbers = torch.stack([torch.randperm(episode.way, device=device) for _ in range(copies)])  # of the classes
        support, query = (items.expand(copies, *items.shape) for items in (support, query))
        labels = numbers[:, class_labels(episode.way, shot, device)]
        logits = self.scores(self.contexts(support, labels, episode.way), query, episode.way)
        logits = logits.gather(-1, numbers.unsqueeze(-2).expand_as(logits))  # column k: class k of the episode
        labels = episode.query_labels.repeat(copies)
        return EpisodeLoss(cross_entropy(logits.flatten(0, 1), labels), logits[0])


class DenseBlock(nn.Module):
    """Adds channels tanh(u) · sigmoid(v) to a sequence; u and v are causal convolutions of two taps."""

    def __init__(self, channels: int, filters: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.current = nn.Linear(channels, 2 * filters)
        self.earlier = nn.Linear(channels, 2 * filters, bias=False)

    def forward(self, items: Tensor, context: Tensor | None = None) -> Tensor:
        """Return a sequence (..., n, more channels), or with a context its items, each as if it alone followed that."""
        padded = F.pad(items if context is None else context, (0, 0, self.dilation, 0))
        place = slice(items.shape[-2]) if context is None else slice(length := context.shape[-2], length + 1)
        candidate, gate = (self.current(items) + self.earlier(padded[..., place, :])).chunk(2, dim=-1)
        return torch.cat([items, candidate.tanh() * gate.sigmoid()], dim=-1)


class CausalAttention(nn.Module):
    """Adds to every item a mixture of the values of the items up to itself.

    Keys begin as orthogonal projections, and equal to queries: from the start an item attends to those like itself.
    """

    def __init__(self, channels: int, keys: int, values: int) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(channels, keys), nn.Linear(channels, keys)
        self.value = nn.Linear(channels, values)
        nn.init.orthogonal_(self.query.weight)
        self.key.load_state_dict(self.query.state_dict())

    def forward(self, items: Tensor, context: Tensor | None = None) -> Tensor:
        """Return a sequence (..., n, more channels), or with a context its items, each as if it alone followed that."""
        attention, values = self.weights(items, context), self.value(items)
        if context is None:
            return torch.cat([items, attention @ values], dim=-1)
        return torch.cat([items, attention[..., :-1] @ self.value(context) + attention[..., -1:] * values], dim=-1)

    def weights(self, items: Tensor, context: Tensor | None = None) -> Tensor:
        """Return attention that sums to one: (..., n, n) to the items up to each, or (..., n, context and itself)."""
        queries, keys = self.query(items), self.key(items)
        if context is None:
            scores = queries @ keys.mT
            scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(diagonal=1), -math.inf)
        else:
            scores = torch.cat([queries @ self.key(context).mT, (queries * keys).sum(dim=-1, keepdim=True)], dim=-1)
        return (scores / math.sqrt(self.key.out_features)).softmax(dim=-1)

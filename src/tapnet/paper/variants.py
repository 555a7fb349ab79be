"""What the ablations measure at test time: TapNet with other options, each projection dimension, other views."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tapnet.backbones import Backbone
from tapnet.data.batches import class_labels
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import UserError
from tapnet.evaluation.evaluator import Accuracies, Evaluator
from tapnet.functional import null_coordinates, reference_directions, select_references
from tapnet.methods import Head, LinearHead, Method, PrototypeMethod, TapNet, TapNetVariant
from tapnet.methods.base import check_choice
from tapnet.methods.tapnet import BASES

_VALUES = 2**20  # coordinates of queries times classes at a time, 4 MB


def with_options(evaluator: Evaluator, options: dict[str, Any]) -> Evaluator:
    """Return an evaluator on the same features with other options of TapNet."""
    assert len(evaluator.features)  # computed once, for all variants
    variant = copy.copy(evaluator)
    variant.method = as_variant(_tapnet(evaluator)).with_options(**options)
    return variant


def as_variant(method: TapNet) -> TapNetVariant:
    """Return TapNet as a `TapNetVariant` with the same parameters and options."""
    if isinstance(method, TapNetVariant):
        return method
    names = ("projection_dim", "selection", "differentiable", "basis", "reference_shots", "temperature")
    options = {name: getattr(method, name) for name in names}
    variant = TapNetVariant(method.backbone, len(method.references), **options)
    variant.references = method.references
    return variant.train(method.training)


def _tapnet(evaluator: Evaluator) -> TapNet:
    if not isinstance(evaluator.method, TapNet):
        raise UserError(f"This ablation is of TapNet, the checkpoint is a {type(evaluator.method).__name__}.")
    return evaluator.method


@torch.inference_mode()
def random_selection_accuracies(evaluator: Evaluator, task: EpisodeSpec) -> Accuracies:
    """Return the accuracy of each episode with random references, which depend on the seed and its number only."""
    method, sampler = _tapnet(evaluator), evaluator.images.sampler(task)
    answers = class_labels(task.way, task.query, evaluator.device)
    accuracies = np.zeros(task.episodes)
    for index in range(task.episodes):
        episode = sampler.batch(index, index + 1)
        prototypes = evaluator.prototypes(episode.support)
        seed = np.random.SeedSequence((task.seed, index)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(seed[0]))
        chosen = select_references(prototypes, method.references, "random", generator)
        scores = method.adapt_to(prototypes, chosen).logits(evaluator.gathered(episode.query))
        accuracies[index] = (scores[0].argmax(dim=-1) == answers).double().mean().item()
    return accuracies


@torch.inference_mode()
def dimension_accuracies(
    evaluator: Evaluator, task: EpisodeSpec, rotation: Tensor | None = None, basis: str = "householder"
) -> Accuracies:
    """Return the accuracy of each episode for each projection dimension D, shape (episodes, L - way).

    The columns of the projection are ordered by `basis`, one of BASES, and then rotated by `rotation`, since below full
    dimension the projection is not unique. At D the score of class k for a query with coordinates x is the sum over
    the first D of them of 2·x·r_k - r_k², with the coordinates r_k of its reference: a cumulative sum has them all.
    """
    check_choice("basis", basis, BASES)
    method, sampler, way = _tapnet(evaluator), evaluator.images.sampler(task), task.way
    rotation = None if rotation is None else rotation.to(evaluator.device)
    size = max(1, _VALUES // (way * way * task.query * method.backbone.dim))
    accuracies = []
    for start in range(0, task.episodes, size):
        batch = sampler.batch(start, min(start + size, task.episodes))
        head = method.adapt_to(evaluator.prototypes(batch.support))
        first = reference_directions(head.references, head.errors) if basis == "references" else None
        both = torch.cat([evaluator.gathered(batch.query), head.references], dim=1)
        inside = null_coordinates(both, head.ordered_errors, None, first)
        inside = inside if rotation is None else inside @ rotation
        queries, references = inside[:, :-way].unsqueeze(1), inside[:, -way:].unsqueeze(2)
        scores = (queries * (2 * references)).sub_(references.square())  # (episodes, way, way · query, L - way)
        if head.shift is not None:
            scores[..., 0] += head.shift.unsqueeze(-1)
        scores = scores.cumsum_(dim=-1)
        own = scores.unflatten(2, (way, -1)).diagonal(dim1=1, dim2=2).movedim(-1, 1).flatten(1, 2)
        accuracies.append((own >= scores.amax(dim=1)).float().mean(dim=1).cpu())
    return torch.cat(accuracies).double().numpy()


def random_rotation(size: int, generator: torch.Generator) -> Tensor:
    """Return an orthogonal matrix (size, size), uniformly distributed."""
    basis, triangle = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    rotation: Tensor = basis * triangle.diagonal().sign()
    return rotation.float()


class BatchStatistics(Method):
    """A method whose batch normalization uses the images of an episode, queries included."""

    transductive = True
    task_features = True
    batched = False

    def __init__(self, method: Method) -> None:
        method = copy.deepcopy(method)
        super().__init__(method.backbone)
        self.method = method
        layers = [layer for layer in self.modules() if isinstance(layer, nn.BatchNorm2d)]
        if not layers:
            raise UserError(f"{type(self.backbone).__name__} has no batch normalization to change.")
        for layer in layers:
            layer.running_mean = layer.running_var = None  # then the layer uses those of the batch

    def logits(self, support: Tensor, labels: Tensor, query: Tensor, way: int) -> Tensor:
        logits: Tensor = self.method(support, labels, query, way)
        return logits


class FourRotations(Backbone):
    """The concatenated features of an image rotated by 0, 90, 180 and 270 degrees."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        channels, height, width = backbone.image_shape
        if height != width:
            raise UserError(f"Only square images can be rotated, got {height}×{width}.")
        self.once, self.image_shape, self.dim = backbone, (channels, height, width), 4 * backbone.dim

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self.once(images.rot90(quarters, (-2, -1))) for quarters in range(4)], dim=-1)


class RotatedViews(PrototypeMethod):
    """A method that classifies each of four rotations separately and adds the logits."""

    def __init__(self, method: Method) -> None:
        if not (isinstance(method, PrototypeMethod) and method.prototypes_suffice):
            raise UserError(
                f"This ablation needs a method of class prototypes, the checkpoint is a {type(method).__name__}."
            )
        if method.backbone.four_rotations:
            raise UserError(
                "This backbone processes every image in four rotations already: expected a checkpoint of one that "
                "does not."
            )
        super().__init__(FourRotations(method.backbone))
        self.method = method

    def adapt_to(self, prototypes: Tensor) -> SumOfHeads:
        return SumOfHeads(tuple(map(self.method.adapt_to, prototypes.chunk(4, dim=-1))))


@dataclass(frozen=True)
class SumOfHeads(Head):
    """The sum of the logits of heads over equal parts of the features."""

    heads: tuple[Head, ...]

    def logits(self, query: Tensor) -> Tensor:
        parts = zip(self.heads, query.chunk(len(self.heads), dim=-1), strict=True)
        return torch.stack([head.logits(part) for head, part in parts]).sum(dim=0)

    def linear(self) -> LinearHead | None:
        linear = [layer for head in self.heads if (layer := head.linear()) is not None]
        if len(linear) < len(self.heads):
            return None
        weight = torch.cat([layer.weight for layer in linear], dim=-1)
        return LinearHead(weight, torch.stack([layer.bias for layer in linear]).sum(dim=0))

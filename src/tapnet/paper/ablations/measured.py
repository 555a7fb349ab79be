"""Ablations of a trained network: variants at test time."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tapnet.backbones import Backbone
from tapnet.data.batches import class_labels
from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import UserError
from tapnet.evaluation.evaluator import Accuracies, Evaluator, mean_and_ci95
from tapnet.functional import select_references
from tapnet.methods import Head, LinearHead, Method, PrototypeMethod, TapNet, TapNetVariant
from tapnet.paper.ablations.rows import Row, paired
from tapnet.paper.dimension_curve import dimension_accuracies, dimension_curve, random_rotation

Options = dict[str, Any]  # of the method, as in a recipe

WAYS = (2, 3, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100)
ROTATIONS, ROTATED_EPISODES = 20, 100  # a rotation takes far longer than the rest of a curve


def measure_options(variants: dict[str, Options], evaluator: Evaluator, task: EpisodeSpec) -> list[Row]:
    """Return the accuracies of the network with other options of its method."""
    return paired({name: _varied(evaluator, options).accuracies(task) for name, options in variants.items()})


def measure_selection(evaluator: Evaluator, task: EpisodeSpec) -> list[Row]:
    """Return the accuracies if classes take the closest, a random, the farthest or the optimal reference."""
    by_rule = {
        rule: _varied(evaluator, {"selection": rule}).accuracies(task) for rule in ("closest", "farthest", "optimal")
    }
    closest = by_rule.pop("closest")
    return paired({"closest": closest, "random": random_selection_accuracies(evaluator, task), **by_rule})


@torch.inference_mode()
def random_selection_accuracies(evaluator: Evaluator, task: EpisodeSpec) -> Accuracies:
    """Return the accuracy of each episode with random references, which depend on the seed and its number only."""
    method = _tapnet(evaluator)
    sampler = evaluator.images.sampler(task)
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


def measure_dimension(evaluator: Evaluator, task: EpisodeSpec) -> list[Row]:
    """Return the accuracy at every dimension D, paired with the full one, by Householder reflections.

    Each row also has the accuracy with the directions of the references first, and the lowest and highest accuracy over
    random rotations of the null space: measured on the first ROTATED_EPISODES episodes and corrected by how far these
    are from all episodes without a rotation.
    """
    accuracies = dimension_accuracies(evaluator, task)
    full = accuracies.shape[1]
    generator = torch.Generator().manual_seed(task.seed)
    rotations = (random_rotation(full, generator) for _ in range(ROTATIONS))
    rotated = replace(task, episodes=min(task.episodes, ROTATED_EPISODES))
    curves = np.stack([dimension_curve(evaluator, rotated, rotation) for rotation in rotations])
    curves += accuracies.mean(axis=0) - accuracies[: rotated.episodes].mean(axis=0)
    rows = paired({f"D = {dim}": column for dim, column in enumerate(accuracies.T, 1)}, base=f"D = {full}")
    columns = zip(rows, _references_first(evaluator, task, full), curves.min(axis=0), curves.max(axis=0), strict=True)
    return [
        replace(row, references_first=first, lowest=float(low), highest=float(high))
        for row, first, low, high in columns
    ]


def _references_first(evaluator: Evaluator, task: EpisodeSpec, full: int) -> list[float] | list[None]:
    """Return the curve of `basis="references"`, or `None`s if the null space is smaller than the references' span."""
    if full < task.way:
        return [None] * full
    return [float(value) for value in dimension_curve(evaluator, task, basis="references")]


def measure_ways(evaluator: Evaluator, task: EpisodeSpec) -> list[Row]:
    """Return the accuracy by number of classes, up to the number of references and of classes in the data."""
    limit = len(evaluator.images.names if evaluator.images.one_rotation_per_class else evaluator.images.class_names)
    if isinstance(evaluator.method, TapNet):
        limit = min(limit, len(evaluator.method.references))
    tasks = [replace(task, way=way) for way in WAYS if way <= limit]
    return [Row(f"{each.way}-way", *mean_and_ci95(evaluator.accuracies(each))) for each in tasks]


def measure_batch_statistics(evaluator: Evaluator, task: EpisodeSpec) -> list[Row]:
    """Return the accuracies with batch statistics of training, or of the images of each episode."""
    together = Evaluator(BatchStatistics(evaluator.method), evaluator.images, evaluator.precision)
    return paired({"running": evaluator.accuracies(task), "batch (transductive)": together.accuracies(task)})


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


def measure_views(evaluator: Evaluator, task: EpisodeSpec) -> list[Row]:
    """Return the accuracies with each image as it is, or in four rotations with a head for each."""
    if not isinstance(evaluator.method, PrototypeMethod):
        raise UserError(f"This ablation needs a method of class prototypes, the checkpoint is a {_kind(evaluator)}.")
    if evaluator.method.backbone.four_rotations:
        raise UserError(
            "This backbone processes every image in four rotations already: expected a checkpoint of one that does not."
        )
    rotated = Evaluator(RotatedViews(evaluator.method), evaluator.images, evaluator.precision, evaluator.cache)
    return paired({"as it is": evaluator.accuracies(task), "four rotations": rotated.accuracies(task)})


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

    def __init__(self, method: PrototypeMethod) -> None:
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
        linear = [each for head in self.heads if (each := head.linear()) is not None]
        if len(linear) < len(self.heads):
            return None
        weight, bias = torch.cat([each.weight for each in linear], dim=-1), torch.stack([each.bias for each in linear])
        return LinearHead(weight, bias.sum(dim=0))


def _tapnet(evaluator: Evaluator) -> TapNet:
    if not isinstance(evaluator.method, TapNet):
        raise UserError(f"This ablation is of TapNet, the checkpoint is a {_kind(evaluator)}.")
    return evaluator.method


def _kind(evaluator: Evaluator) -> str:
    return type(evaluator.method).__name__


def _varied(evaluator: Evaluator, options: Options) -> Evaluator:
    """Return an evaluator on the same features with other options of the method."""
    assert len(evaluator.features)  # computed once, for all variants
    variant = copy.copy(evaluator)
    variant.method = as_variant(_tapnet(evaluator)).with_options(**options)
    return variant


def as_variant(method: TapNet) -> TapNetVariant:
    """Return TapNet as a `TapNetVariant` with the same parameters and options."""
    if isinstance(method, TapNetVariant):
        return method
    options = {
        name: getattr(method, name)
        for name in ("projection_dim", "selection", "differentiable", "basis", "reference_shots", "temperature")
    }
    variant = TapNetVariant(method.backbone, len(method.references), **options)
    variant.references = method.references
    return variant.train(method.training)

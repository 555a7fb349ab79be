"""Ablations of a trained network: variants at test time."""

from __future__ import annotations

import copy
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tapnet.backbones import Backbone
from tapnet.data.batches import class_labels
from tapnet.evaluation.dimension_curve import dimension_accuracies, dimension_curve, random_rotation
from tapnet.evaluation.evaluator import Accuracies, Evaluator, mean_and_ci95
from tapnet.functional import select_references
from tapnet.methods import LinearMethod, Method, TapNet
from tapnet.paper.ablations.rows import Row, Task, paired

Options = dict[str, Any]  # of the method, as in a recipe

WAYS = (2, 3, 5, 10, 15, 20, 30, 40, 50, 60, 80, 100)
ROTATIONS = 20


def measure_options(variants: dict[str, Options], judge: Evaluator, task: Task) -> list[Row]:
    """The network under other options of its method."""
    return paired({name: _varied(judge, options).accuracies(**asdict(task)) for name, options in variants.items()})


def measure_selection(judge: Evaluator, task: Task) -> list[Row]:
    """Which reference a class takes: the closest, any, the farthest, or those of least total distance."""
    by_rule = {
        rule: _varied(judge, {"selection": rule}).accuracies(**asdict(task))
        for rule in ("closest", "farthest", "optimal")
    }
    closest = by_rule.pop("closest")
    return paired({"closest": closest, "random": random_selection_accuracies(judge, task), **by_rule})


@torch.inference_mode()
def random_selection_accuracies(judge: Evaluator, task: Task) -> Accuracies:
    """The accuracy of each episode with references by lot; the lots of episode i follow from the seed and i alone."""
    method = _tapnet(judge)
    sampler = judge.images.episodes(task.way, task.shot, task.query, task.seed)
    answers = class_labels(task.way, task.query, judge.device)
    accuracies = np.zeros(task.episodes)
    for index in range(task.episodes):
        episode = sampler.batch(index, index + 1)
        prototypes = judge.prototypes(episode.support)
        lots = np.random.SeedSequence((task.seed, index)).generate_state(1, np.uint64)
        generator = torch.Generator().manual_seed(int(lots[0]))
        chosen = select_references(prototypes, method.references, "random", generator)
        weight, bias = method.head(prototypes, chosen)
        scores = torch.baddbmm(bias.unsqueeze(-2), judge.gathered(episode.query), weight.mT)
        accuracies[index] = (scores[0].argmax(dim=-1) == answers).double().mean().item()
    return accuracies


def measure_dimension(judge: Evaluator, task: Task) -> list[Row]:
    """Every dimension D against the full one; lowest and highest over random rotations of the null space."""
    accuracies = dimension_accuracies(judge, **asdict(task))
    full = accuracies.shape[1]
    generator = torch.Generator().manual_seed(task.seed)
    rotations = (random_rotation(full, generator) for _ in range(ROTATIONS))
    curves = np.stack([dimension_curve(judge, **asdict(task), rotation=rotation) for rotation in rotations])
    rows = paired({f"D = {dim}": column for dim, column in enumerate(accuracies.T, 1)}, base=f"D = {full}")
    bands = zip(rows, curves.min(axis=0), curves.max(axis=0), strict=True)
    return [replace(row, lowest=float(low), highest=float(high)) for row, low, high in bands]


def measure_ways(judge: Evaluator, task: Task) -> list[Row]:
    """The accuracy by the number of classes, as far as the references and the data reach; no episodes are shared."""
    limit = len(judge.images.names if judge.images.one_rotation_per_class else judge.images.class_names)
    if isinstance(judge.method, TapNet):
        limit = min(limit, len(judge.method.references))
    tasks = [replace(task, way=way) for way in WAYS if way <= limit]
    return [Row(f"{each.way}-way", *mean_and_ci95(judge.accuracies(**asdict(each)))) for each in tasks]


def measure_batch_statistics(judge: Evaluator, task: Task) -> list[Row]:
    """Batch normalisation by the statistics of training, or by those of an episode's own images."""
    together = Evaluator(BatchStatistics(judge.method), judge.images, judge.precision)
    return paired(
        {
            "running": judge.accuracies(**asdict(task)),
            "batch (transductive)": together.accuracies(**asdict(task)),
        }
    )


class BatchStatistics(Method):
    """A method that normalises by the images of its episode, queries included: so they are embedded together."""

    transductive = True

    def __init__(self, method: Method) -> None:
        super().__init__()
        self.method = copy.deepcopy(method)
        self.backbone = self.method.backbone
        layers = [layer for layer in self.modules() if isinstance(layer, nn.BatchNorm2d)]
        if not layers:
            raise ValueError(f"{type(self.backbone).__name__} has no batch normalisation to change.")
        for layer in layers:
            layer.running_mean = layer.running_var = None  # without them the layer takes those of the batch

    def forward(self, support_images: Tensor, support_labels: Tensor, query_images: Tensor) -> Tensor:
        logits: Tensor = self.method(support_images, support_labels, query_images)
        return logits


def measure_views(judge: Evaluator, task: Task) -> list[Row]:
    """Every image as it is, or turned by each quarter, four heads on four features."""
    if not isinstance(judge.method, LinearMethod):
        raise ValueError(f"This ablation needs a method with a linear head, the checkpoint is a {_kind(judge)}.")
    if judge.method.backbone.four_rotations:
        raise ValueError(
            "This backbone sees every image in its four turns already: give a checkpoint of one that does not."
        )
    turned = Evaluator(RotatedViews(judge.method), judge.images, judge.precision, judge.cache)
    return paired({"as it is": judge.accuracies(**asdict(task)), "four rotations": turned.accuracies(**asdict(task))})


class FourRotations(Backbone):
    """A backbone that sees an image four times, each time turned by a further quarter; its features side by side."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        channels, height, width = backbone.image_shape
        if height != width:
            raise ValueError(f"Only square images can be turned, got {height}×{width}.")
        self.once, self.image_shape, self.dim = backbone, (channels, height, width), 4 * backbone.dim

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self.once(images.rot90(quarters, (-2, -1))) for quarters in range(4)], dim=-1)


class RotatedViews(LinearMethod):
    """A method that classifies each of four turns by itself and adds up the logits."""

    def __init__(self, method: LinearMethod) -> None:
        super().__init__(FourRotations(method.backbone))
        self.method = method

    def logits(self, support_features: Tensor, support_labels: Tensor, query_features: Tensor) -> Tensor:
        rotations = zip(support_features.chunk(4, dim=-1), query_features.chunk(4, dim=-1), strict=True)
        return torch.stack([self.method.logits(support, support_labels, query) for support, query in rotations]).sum(
            dim=0
        )

    def head(self, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        weights, biases = zip(*map(self.method.head, prototypes.chunk(4, dim=-1)), strict=True)
        return torch.cat(weights, dim=-1), torch.stack(biases).sum(dim=0)


def _tapnet(judge: Evaluator) -> TapNet:
    if not isinstance(judge.method, TapNet):
        raise ValueError(f"This ablation is of TapNet, the checkpoint is a {_kind(judge)}.")
    return judge.method


def _kind(judge: Evaluator) -> str:
    return type(judge.method).__name__


def _varied(judge: Evaluator, options: Options) -> Evaluator:
    """An evaluator on the same features with other options of the method."""
    assert len(judge.features)  # now, for all variants
    variant = copy.copy(judge)
    variant.method = copy.copy(_tapnet(judge))
    for name, value in options.items():
        setattr(variant.method, name, value)
    return variant

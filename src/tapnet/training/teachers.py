"""Knowledge distillation: trained networks whose predictions a run learns from, besides the labels.

Geoffrey Hinton, Oriol Vinyals, Jeff Dean. Distilling the Knowledge in a Neural Network. 2015.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from tapnet.backbones import ImageShape
from tapnet.checkpoint import Ancestor, Checkpoint
from tapnet.data.batches import EpisodeImages
from tapnet.errors import UserError
from tapnet.evaluation.embedding import fused
from tapnet.methods import Method
from tapnet.training.initialization import described, read_trained


class Teachers:
    r"""Trained networks that tell how alike the classes of an episode are.

    With labels $y$ as one-hot vectors and the predictions $p_i$ of n teachers in eval mode, the targets of the queries
    are $(1 - w)\,y + \frac{w}{n}\sum_i p_i$.
    """

    def __init__(self, methods: Sequence[Method], weight: float) -> None:
        self.methods, self.weight = methods, weight

    @torch.no_grad()
    def targets(self, episode: EpisodeImages) -> Tensor:
        """Return probabilities for the queries of each division of an episode, (divisions, way · query, way)."""
        predicted = torch.stack([_predictions(method, episode) for method in self.methods]).mean(dim=0)
        labels = F.one_hot(episode.query_labels, episode.way).to(predicted.dtype)
        return labels.lerp(predicted, self.weight)


def load_teachers(
    paths: Sequence[str], weight: float, image_shape: ImageShape, way: int, device: torch.device
) -> tuple[Teachers, str, tuple[Ancestor, ...]]:
    """Return the networks in these checkpoints, their origin in words, and by the classes that they have seen.

    Raise UserError if one of them cannot predict episodes of so many classes of such images.
    """
    methods, words = [], []
    ancestors: list[Ancestor] = []
    for path in paths:
        checkpoint, its_ancestors = read_trained(path, "teachers")
        methods.append(_teacher(checkpoint, path, image_shape, way).to(device))
        words.append(f"distilled from {described(checkpoint.header)}")
        words += [f"itself {checkpoint.header.origin}"] if checkpoint.header.origin else []
        ancestors += its_ancestors
    return Teachers(methods, weight), "; ".join(words), tuple(ancestors)


def _teacher(checkpoint: Checkpoint, path: str, image_shape: ImageShape, way: int) -> Method:
    method, expected = checkpoint.method(), tuple(checkpoint.header.image_shape)
    problem = ""
    if expected != image_shape:
        problem = f"takes images of shape {expected}, those of the recipe have {image_shape}"
    elif method.max_way is not None and method.max_way < way:
        problem = f"knows episodes of up to {method.max_way} classes, training.way is {way}"
    elif method.transductive or method.gradients_at_test:
        problem = f"is of the method {checkpoint.header.recipe.method.name}, which does not answer each query by itself"
    if problem:
        raise UserError(f"The teacher {path} (training.teachers) {problem}: choose another network.")
    method.backbone = fused(method.backbone)
    return method


def _predictions(method: Method, episode: EpisodeImages) -> Tensor:
    """Return what the method predicts for the queries of each division, in float32."""
    features = method.embed(episode.images)
    scores = [method.logits(support, episode.support_labels, query) for support, query in episode.divided(features)]
    return torch.stack(scores).float().softmax(dim=-1)

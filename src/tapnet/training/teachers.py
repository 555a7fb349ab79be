"""Knowledge distillation: trained networks whose predictions a run learns from, besides the labels.

Geoffrey Hinton, Oriol Vinyals, Jeff Dean. Distilling the Knowledge in a Neural Network. 2015.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional as F

from tapnet.backbones import ImageShape
from tapnet.checkpoint import Ancestor, Checkpoint, read_checkpoint
from tapnet.data.batches import EpisodeImages
from tapnet.errors import UserError
from tapnet.evaluation.embedding import fused
from tapnet.methods import Method
from tapnet.recipe import Training
from tapnet.training.initialization import naming


@dataclass
class Teachers:
    r"""Trained networks in eval mode whose predictions become part of the targets of an episode.

    With labels $y$ as one-hot vectors and the predictions $p_i$ of n teachers, the targets of the queries are
    $(1 - w)\,y + \frac{w}{n}\sum_i p_i$.
    """

    weight: float
    methods: list[Method] = field(default_factory=list)
    ancestors: tuple[Ancestor, ...] = ()  # the networks that they are and learned from

    @torch.no_grad()
    def targets(self, episode: EpisodeImages) -> Tensor:
        """Return probabilities for the queries of each division of an episode, (divisions, way · query, way)."""
        logits = torch.stack([torch.stack(method.episode_logits(episode)) for method in self.methods])
        labels = F.one_hot(episode.query_labels, episode.way).float()
        return labels.lerp(logits.float().softmax(dim=-1).mean(dim=0), self.weight)


def load_teachers(training: Training, image_shape: ImageShape, device: torch.device) -> Teachers:
    """Return the teachers of a recipe; raise UserError if one cannot predict its training episodes."""
    teachers = Teachers(training.teacher_weight)
    for path in training.teachers:
        with naming("teachers", path):
            checkpoint = read_checkpoint(path)
            teachers.methods.append(_teacher(checkpoint, path, image_shape, training.way).to(device))
        teachers.ancestors += checkpoint.as_ancestors("distilled")
    return teachers


def _teacher(checkpoint: Checkpoint, path: str, image_shape: ImageShape, way: int) -> Method:
    method, shape = checkpoint.method(), tuple(checkpoint.header.image_shape)
    name, problem = checkpoint.header.recipe.method.name, ""
    if shape != image_shape:
        problem = f"takes images of shape {shape}, but those of the recipe have {image_shape}"
    elif method.max_way is not None and method.max_way < way:
        problem = f"takes episodes of at most {method.max_way} classes, but training.way is {way}"
    elif method.transductive:
        problem = f"uses {name}, whose predictions depend on the other queries"
    if problem:
        raise UserError(f"{path} {problem}: choose another network.")
    if not method.task_features:  # otherwise the method reaches into the layers of its backbone
        method.backbone = fused(method.backbone)
    return method

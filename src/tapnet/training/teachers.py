"""Knowledge distillation: trained networks whose predictions a run learns from, besides the labels.

Geoffrey Hinton, Oriol Vinyals, Jeff Dean. Distilling the Knowledge in a Neural Network. 2015.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from tapnet.backbones import ImageShape
from tapnet.checkpoint import Ancestor, read_checkpoint
from tapnet.data.batches import EpisodeImages
from tapnet.errors import UserError
from tapnet.evaluation.embedding import fused
from tapnet.methods import Method
from tapnet.recipe import Training
from tapnet.training.initialization import prefix_errors


@torch.no_grad()
def teacher_targets(episode: EpisodeImages, teachers: Sequence[Method], weight: float) -> Tensor:
    r"""Return probabilities for the queries of each division of an episode, (divisions, way · query, way).

    With labels $y$ as one-hot vectors and the predictions $p_i$ of n teachers they are
    $(1 - w)\,y + \frac{w}{n}\sum_i p_i$.
    """
    logits = torch.stack([torch.stack(teacher.episode_logits(episode)) for teacher in teachers])
    labels = F.one_hot(episode.query_labels, episode.way).float()
    return labels.lerp(logits.float().softmax(dim=-1).mean(dim=0), weight)


def load_teachers(
    training: Training, image_shape: ImageShape, device: torch.device
) -> tuple[list[Method], tuple[Ancestor, ...]]:
    """Return the teachers of a recipe in eval mode, and the networks that they are and learned from.

    Raise UserError if one cannot predict the training episodes.
    """
    teachers: list[Method] = []
    ancestors: tuple[Ancestor, ...] = ()
    for path in training.teachers:
        with prefix_errors("teachers", path):
            checkpoint = read_checkpoint(path)
            method, shape = checkpoint.method(), tuple(checkpoint.header.image_shape)
            problem = ""
            if shape != image_shape:
                problem = f"takes images of shape {shape}, but those of the recipe have {image_shape}"
            elif method.max_way is not None and method.max_way < training.way:
                problem = f"takes episodes of at most {method.max_way} classes, but training.way is {training.way}"
            elif method.transductive:
                name = checkpoint.header.recipe.method.name
                problem = f"uses {name}, whose predictions depend on the other queries"
            if problem:
                raise UserError(f"{path} {problem}: choose another network.")
        if not method.task_features:  # otherwise the method reaches into the layers of its backbone
            method.backbone = fused(method.backbone)
        teachers.append(method.to(device))
        ancestors += checkpoint.as_ancestors("distilled")
    return teachers, ancestors

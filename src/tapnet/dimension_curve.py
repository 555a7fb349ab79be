"""Accuracy at every projection dimension D at once: the curve from which D is chosen on validation classes.

Below full dimension the projection is not unique: a rotation of the null space gives another that is as good.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tapnet.evaluation import Accuracies, Evaluator
from tapnet.functional import null_coordinates
from tapnet.methods import TapNet

_VALUES = 2**20  # scores at a time, 4 MB


def dimension_curve(
    evaluator: Evaluator,
    way: int,
    shot: int,
    query: int,
    episodes: int,
    seed: int = 0,
    rotation: Tensor | None = None,
) -> Accuracies:
    """The mean accuracy over episodes for each D from 1 to L - way, shape (L - way,)."""
    curve: Accuracies = dimension_accuracies(evaluator, way, shot, query, episodes, seed, rotation).mean(axis=0)
    return curve


@torch.inference_mode()
def dimension_accuracies(
    evaluator: Evaluator,
    way: int,
    shot: int,
    query: int,
    episodes: int,
    seed: int = 0,
    rotation: Tensor | None = None,
) -> Accuracies:
    """The accuracy of each episode for each D, shape (episodes, L - way), in a null space turned by `rotation`."""
    method = evaluator.method
    if not isinstance(method, TapNet):
        raise ValueError(f"Only TapNet has a projection dimension to choose, this is {type(method).__name__}.")
    sampler = evaluator.images.episodes(way, shot, query, seed)
    size = max(1, _VALUES // (way * (way - 1) * query * method.backbone.dim))
    accuracies = np.zeros((episodes, method.backbone.dim - way))
    for start in range(0, episodes, 32 * size):
        block = sampler.batch(start, min(start + 32 * size, episodes))
        prototypes = evaluator.prototypes(block.support)
        chosen = method.choose(prototypes)
        references, errors = method.adapt_to(prototypes, chosen=chosen)
        shift = method.shift(chosen)
        for first in range(0, len(block), size):
            part = slice(first, first + size)
            queries = evaluator.gathered(block.query[part])
            hits = _hits(queries, references[part], errors[part], shift[part], query, rotation)
            accuracies[start + first : start + first + len(hits)] = hits.cpu().numpy()
    return accuracies


def random_rotation(size: int, generator: torch.Generator) -> Tensor:
    """An orthogonal matrix (size, size), each as likely as any other."""
    basis, triangle = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    rotation: Tensor = basis * triangle.diagonal().sign()
    return rotation.float()


def _hits(
    queries: Tensor, references: Tensor, errors: Tensor, shift: Tensor, query: int, rotation: Tensor | None
) -> Tensor:
    """The share of queries that are nearest to their own reference, (episodes, D), for every D.

    With coordinates x of a query and r of the references, another class k wins over the true one y at D when the sum
    over the first D coordinates of 2x(r_k - r_y) - (r_k² - r_y²), and what the `shift` of k exceeds that of y by, is
    positive.
    """
    way = references.shape[1]
    coordinates = null_coordinates(torch.cat([references, queries], dim=1), errors, None)
    coordinates = coordinates if rotation is None else coordinates @ rotation.to(coordinates.device)
    inside, vectors = coordinates.tensor_split([way], dim=1)
    vectors = vectors.unflatten(1, (way, query)).unsqueeze(3)  # (episodes, way, query, 1, D)
    others = torch.tensor([[k for k in range(way) if k != y] for y in range(way)], device=queries.device)
    true, rivals = inside.unsqueeze(2), inside[:, others]  # (episodes, way, 1 or way - 1, D)
    weight, squares = 2 * (rivals - true), true.square() - rivals.square()
    squares[..., 0] += shift[:, others] - shift.unsqueeze(2)
    leads = torch.addcmul(squares.unsqueeze(2), vectors, weight.unsqueeze(2))
    worst = leads.cumsum(dim=-1).amax(dim=-2)  # (episodes, way, query, D)
    return (worst < 0).float().mean(dim=(1, 2))

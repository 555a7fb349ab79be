"""The accuracy at every projection dimension D at once, to choose D on validation classes.

Below full dimension the projection is not unique: it changes with a rotation of the null space. With
`basis="references"` the directions in which the references differ come first, and D = way - 1 loses nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from tapnet.data.episodes import EpisodeSpec
from tapnet.errors import UserError
from tapnet.evaluation.evaluator import Accuracies, Evaluator
from tapnet.functional import reference_directions, reflections
from tapnet.methods import TapNet
from tapnet.methods.base import check_choice
from tapnet.methods.tapnet import BASES

_BLOCKS = 64  # of neighboring coordinates, summed side by side
_VALUES = 2**19  # queries and scores at a time, 2 MB


def dimension_curve(
    evaluator: Evaluator, spec: EpisodeSpec, rotation: Tensor | None = None, basis: str = "householder"
) -> Accuracies:
    """Return the mean accuracy over episodes for each D from 1 to L - way, shape (L - way,)."""
    batches = _accuracies(evaluator, spec, rotation, basis)
    curve: Accuracies = np.asarray(sum(batch.double().sum(dim=0) for batch in batches)) / spec.episodes
    return curve


def dimension_accuracies(
    evaluator: Evaluator, spec: EpisodeSpec, rotation: Tensor | None = None, basis: str = "householder"
) -> Accuracies:
    """Return the accuracy of each episode for each D, shape (episodes, L - way).

    The columns of the projection are ordered by `basis`, one of BASES, and then rotated by `rotation`.
    """
    return torch.cat([*_accuracies(evaluator, spec, rotation, basis)]).double().numpy()


def random_rotation(size: int, generator: torch.Generator) -> Tensor:
    """Return an orthogonal matrix (size, size), uniformly distributed."""
    basis, triangle = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64))
    rotation: Tensor = basis * triangle.diagonal().sign()
    return rotation.float()


@torch.inference_mode()
def _accuracies(evaluator: Evaluator, spec: EpisodeSpec, rotation: Tensor | None, basis: str) -> Iterator[Tensor]:
    """Yield accuracies (episodes, L - way), some episodes at a time, on the CPU."""
    check_choice("basis", basis, BASES)
    method = evaluator.method
    if not isinstance(method, TapNet):
        raise UserError(f"Only TapNet has a projection dimension to choose, this is {type(method).__name__}.")
    rotation = None if rotation is None else rotation.to(evaluator.device)
    sampler, way, query, episodes = evaluator.images.sampler(spec), spec.way, spec.query, spec.episodes
    length = method.backbone.dim
    size = max(1, _VALUES // (way * query * (length + (way - 1) * _BLOCKS)))
    for start in range(0, episodes, 16 * size):
        block = sampler.batch(start, min(start + 16 * size, episodes))
        prototypes = evaluator.prototypes(block.support)
        head = method.adapt_to(prototypes)
        hidden = head.ordered_errors
        if basis == "references":
            hidden = torch.cat([hidden, reference_directions(head.references, head.errors)], dim=-2)
        vectors, triangle = reflections(hidden)
        references = _coordinates(head.references, way, vectors, triangle, rotation)
        shift = references.new_zeros(references.shape[:-1]) if head.shift is None else head.shift
        for first in range(0, len(block.query), size):
            part = slice(first, first + size)
            queries = evaluator.gathered(block.query[part])
            queries = _coordinates(queries, way, vectors[part], triangle[part], rotation)
            hits = _hits(_woven(queries).unflatten(1, (way, 1, query)), _woven(references[part]), shift[part])
            yield hits.mT.flatten(1)[:, way:length].cpu() / (way * query)


def _coordinates(values: Tensor, way: int, vectors: Tensor, triangle: Tensor, rotation: Tensor | None) -> Tensor:
    """Return coordinates of vectors (episodes, n, L) in the null space, after `way` zeros for the errors."""
    values = torch.baddbmm(values, values @ (triangle.mT @ vectors).mT, vectors, alpha=-1)
    values[..., :way] = 0
    if rotation is not None:
        values[..., way:] = values[..., way:] @ rotation
    return values


def _woven(values: Tensor) -> Tensor:
    """Return (..., L) as (..., step, block): neighbors are in one block, so that all blocks take a step at once."""
    steps = -(-values.shape[-1] // _BLOCKS)
    padded = F.pad(values, (0, steps * _BLOCKS - values.shape[-1]))
    woven: Tensor = padded.unflatten(-1, (_BLOCKS, steps)).mT.contiguous()
    return woven


def _hits(queries: Tensor, references: Tensor, shift: Tensor) -> Tensor:
    """Return how many queries of each episode are nearest to their own reference at every D, (episodes, step, block).

    With coordinates x of a query and r of the references, another class k wins over the true one y at D when its lead,
    the sum over the first D coordinates of x(r_k - r_y) - (r_k² - r_y²) / 2, and half of what its `shift` is more, is
    positive. The first pass over the steps gives the leads at the end of each block, the second goes back from there.
    """
    weights, costs = _over_rivals(references), _over_rivals(references.square() / 2)
    first, *later = [(queries[..., j, :], weights[..., j, :], costs[..., j, :]) for j in range(queries.shape[-2])]
    leads = torch.addcmul(-costs.sum(dim=-2), *first[:2])  # (episodes, way, way - 1, query, block)
    for x, weight, _ in later:
        leads.addcmul_(x, weight)
    leads = leads.cumsum(dim=-1).add_(_over_rivals(shift.unsqueeze(-1) / 2))
    hits = [_won(leads)]
    for x, weight, cost in reversed(later):
        leads.addcmul_(x, weight, value=-1).add_(cost)
        hits.append(_won(leads))
    return torch.stack(hits[::-1], dim=1)


def _won(leads: Tensor) -> Tensor:
    return leads.amax(dim=2).lt_(0).sum(dim=(1, 2))


def _over_rivals(values: Tensor) -> Tensor:
    """Return the differences of all other classes from each class, (episodes, way, way - 1, 1, …)."""
    way = values.shape[1]
    rivals = torch.cat([values, values], dim=1).unfold(1, way - 1, 1)[:, 1 : way + 1]
    return (rivals.movedim(-1, 2) - values.unsqueeze(2)).unsqueeze(3)

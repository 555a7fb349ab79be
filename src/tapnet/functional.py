r"""The equations of TapNet (Yoon, Seo, Moon, ICML 2019) as pure functions over tensors.

Shapes end in (way, dim) or (query, dim); any leading dimensions are batches of episodes. Symbols of the paper:
references $\phi_k$, modified references $\tilde\phi_k$, prototypes $c_k$, errors $\epsilon_k$, projection $M$, way
$N_c$, dim $L$.
Half-precision inputs are computed in float32, also inside `torch.autocast`.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from tapnet.errors import UserError
from tapnet.tensor_checks import check_not_nan, check_support, full_precision, projection_sizes


@full_precision
def class_prototypes(features: Tensor, labels: Tensor, way: int) -> Tensor:
    r"""The mean feature of every class: $c_k$, line 4 of Algorithm 1, shape (..., way, dim).

    `features` (..., n, dim), `labels` (..., n) with values 0 to way - 1; classes may differ in their number of shots.
    """
    check_support(features, labels, way)
    members = F.one_hot(labels, way).to(features.dtype)  # (..., n, way)
    return members.mT @ features / members.sum(dim=-2).unsqueeze(-1)


@full_precision
def modified_references(references: Tensor) -> Tensor:
    r"""Each reference less the mean of the others: $\tilde\phi_k$ of eq. (2), shape (..., way, dim)."""
    way = references.shape[-2]
    if way < 2:
        raise UserError(f"Modified references need at least 2 classes, got {way}.")
    others = references.sum(dim=-2, keepdim=True) - references
    return references - others / (way - 1)


@full_precision
def projection_errors(references: Tensor, prototypes: Tensor, modified: bool = True) -> Tensor:
    r"""What the projection must hide: $\epsilon_k = \tilde\phi_k/\|\tilde\phi_k\| - c_k/\|c_k\|$, eq. (3).

    With `modified=False`, $\phi_k$ takes the place of $\tilde\phi_k$: an ablation of the supplement.
    """
    if references.shape[-2:] != prototypes.shape[-2:]:
        raise UserError(
            "Expected one reference per prototype, of the same dim, got references "
            f"{tuple(references.shape)} and prototypes {tuple(prototypes.shape)}."
        )
    targets = modified_references(references) if modified else references
    return F.normalize(targets, dim=-1) - F.normalize(prototypes, dim=-1)


@full_precision
def null_space(errors: Tensor, dim: int | None = None, first: Tensor | None = None) -> Tensor:
    r"""An orthonormal basis that hides every error: $M = \mathrm{null}_D([\epsilon_1; \dots])$ of eq. (4), (..., L, D).

    D is `dim`, or L - way if `None`, whatever the rank of the errors. Householder reflections map the errors onto the
    first `way` axes; M is the image of the other axes, so it is orthogonal to the errors by construction, even if they
    are linearly dependent. For D < L - way the paper's M is not unique: ours depends on the order of the errors and
    starts with the directions `first` (..., n, L), such as `reference_directions`, if they are given.
    """
    way, length, dim = projection_sizes(errors, dim)
    axes = torch.eye(length, dtype=errors.dtype, device=errors.device)[:, way : way + dim]
    return torch.ormqr(*torch.geqrf(_stacked(errors, first).mT), axes.expand(*errors.shape[:-2], length, dim))


@full_precision
def projected_distances(
    queries: Tensor,
    references: Tensor,
    errors: Tensor,
    dim: int | None = None,
    differentiable: bool = False,
    squared: bool = True,
) -> Tensor:
    r"""Squared distances inside the projection, $\|M(x) - M(\phi_k)\|^2$ of eq. (1), shape (..., query, way).

    M is `null_space(errors, dim)`, but never formed. Vectors are projected before they are subtracted, so no distance
    is negative or a difference of large squares. Gradients reach queries and references; the projection is a constant
    unless `differentiable` (at full dimension only), which helps short training. With `squared=False` the result is the
    distance itself, as the paper prints eq. (1), with gradient 0 at distance 0.
    """
    if differentiable:
        way, length, dim = projection_sizes(errors, dim, queries)
        if dim < length - way:
            raise UserError(f"differentiable=True needs the full projection, dim={length - way}, got dim={dim}.")
        queries, references = (residuals(vectors, errors) for vectors in (queries, references))
    else:
        queries, references = (null_coordinates(vectors, errors, dim) for vectors in (queries, references))
    distances = euclidean_distances(queries, references)
    return distances.square() if squared else distances


def euclidean_distances(queries: Tensor, points: Tensor) -> Tensor:
    """Distances (..., n, m) of queries (..., n, dim) and points (..., m, dim), never as a difference of squares."""
    return torch.cdist(queries, points, compute_mode="donot_use_mm_for_euclid_dist")


@full_precision
def null_coordinates(vectors: Tensor, errors: Tensor, dim: int | None = None, first: Tensor | None = None) -> Tensor:
    """Coordinates of each vector in `null_space(errors, dim, first)`, in O(L · way) per vector, shape (..., n, dim)."""
    way, _, dim = projection_sizes(errors, dim, vectors)
    errors = _stacked(errors.detach(), first)
    batch = torch.broadcast_shapes(vectors.shape[:-2], errors.shape[:-2])
    reflections, scales = torch.geqrf(errors.expand(*batch, *errors.shape[-2:]).mT)
    columns = vectors.expand(*batch, *vectors.shape[-2:]).mT
    return torch.ormqr(reflections, scales, columns, transpose=True).mT[..., way : way + dim]


def _stacked(errors: Tensor, first: Tensor | None) -> Tensor:
    return errors if first is None else torch.cat([errors, first.detach()], dim=-2)


@full_precision
def residuals(vectors: Tensor, errors: Tensor) -> Tensor:
    """Each vector less its part in the span of the errors, with a gradient through both, shape (..., n, L)."""
    projection_sizes(errors, None, vectors)
    span = torch.linalg.qr(errors.mT).Q  # (..., L, way)
    return vectors - vectors @ span @ span.mT  # type: ignore[no-any-return]


@full_precision
def linear_head(
    references: Tensor, errors: Tensor, dim: int | None = None, first: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Weight (..., way, L) and bias (..., way) of the linear layer with the same softmax as the projected distances.

    $-\|xM - \phi_kM\|^2 = 2\,\phi_k M M^\top x^\top - \|\phi_k M\|^2 - \|xM\|^2$, and the last term is the same for
    every class.
    """
    way, length, dim = projection_sizes(errors, dim)
    if dim == length - way:  # the whole null space needs no basis of its own
        inside = residuals(references, errors.detach())
        return 2 * inside, -inside.square().sum(dim=-1)
    inside = null_coordinates(references, errors, dim, first)  # (..., way, dim)
    padded = F.pad(inside, (way, length - way - dim))
    weight = 2 * torch.ormqr(*torch.geqrf(_stacked(errors.detach(), first).mT), padded.mT).mT
    return weight, -inside.square().sum(dim=-1)


@full_precision
def reference_directions(references: Tensor, errors: Tensor) -> Tensor:
    """Orthonormal directions in which the projected references differ, largest difference first, (..., way - 1, L).

    With these as the first columns of M, D = way - 1 loses nothing: any further direction adds the same amount to a
    query's distance from every reference. The first two span the best plane for a plot.
    """
    way, _, _ = projection_sizes(errors, None, references)
    inside = residuals(references.detach(), errors.detach())
    centered = inside - inside.mean(dim=-2, keepdim=True)
    directions: Tensor = torch.linalg.svd(centered, full_matrices=False).Vh[..., : way - 1, :]
    return directions


@full_precision
def reflections(errors: Tensor) -> tuple[Tensor, Tensor]:
    r"""V (..., way, L) and T (..., way, way): $x - x V^\top T V$, from axis `way` on, are the `null_coordinates` of x.

    This is the compact WY form of Schreiber and Van Loan (1989): all Householder reflections in two thin products.
    """
    projection_sizes(errors, None)
    packed, scales = torch.geqrf(errors.detach().mT)
    vectors = packed.mT.triu(1)
    vectors.diagonal(dim1=-2, dim2=-1).fill_(1)
    system = (vectors @ vectors.mT).triu(1) * scales.unsqueeze(-1)
    system.diagonal(dim1=-2, dim2=-1).fill_(1)
    return vectors, torch.linalg.solve_triangular(system, torch.diag_embed(scales), upper=True)


@full_precision
def blended_references(references: Tensor, prototypes: Tensor, shots: Tensor, reference_shots: float) -> Tensor:
    r"""References moved towards the prototypes: $(\kappa\phi_k + K_k c_k) / (\kappa + K_k)$, shape (..., way, dim).

    Class k has $K_k$ examples (`shots`, shape (..., way, 1)), and its reference counts as $\kappa$ more
    (`reference_shots`). Inside the projection the two point the same way, so this is the class mean with the reference
    as its prior. As $\kappa \to \infty$ it becomes the paper's reference.
    """
    if not 0 <= reference_shots < float("inf"):
        raise UserError(f"`reference_shots` needs to be 0 or more, got {reference_shots}.")
    reference_shots = min(reference_shots, 1e12)  # more would overflow, and this leaves nothing of the prototypes
    return (reference_shots * references + shots * prototypes) / (reference_shots + shots)


@full_precision
def select_references(
    prototypes: Tensor,
    references: Tensor,
    strategy: str = "closest",
    generator: torch.Generator | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Which reference each class takes, no two the same: indices of shape (..., way).

    - `closest`, as in the paper: class after class takes the closest reference (in squared distance) that is still
      free, so the result depends on the order of the classes.
    - `optimal`: the assignment with the least total distance, whatever the order.
    - `farthest` and `random` (with a `generator`): ablations of the supplement.

    A `bias` (available,) brings each reference closer by twice its value, as in the authors' code.
    """
    way, available = prototypes.shape[-2], references.shape[-2]
    if strategy not in _STRATEGIES:
        raise UserError(f"Reference selection is one of {', '.join(_STRATEGIES)}, got {strategy!r}.")
    if way > available:
        raise UserError(f"{way} classes need {way} references, there are {available}: train with more ways.")
    check_not_nan(prototypes, "prototypes")
    check_not_nan(references, "references")
    prototypes, references = prototypes.detach(), references.detach()
    squares = references.square().sum(dim=-1).unsqueeze(-2)
    distances = squares - 2 * prototypes @ references.mT  # (..., way, available), less the prototypes' squares
    if bias is not None:
        distances = distances - 2 * bias.detach()
    return _STRATEGIES[strategy](distances, generator)


def _closest(distances: Tensor, _: torch.Generator | None) -> Tensor:
    distances, chosen = distances.clone(), []
    for k in range(distances.shape[-2]):
        index = distances[..., k, :].argmin(dim=-1, keepdim=True)  # (..., 1)
        chosen.append(index)
        distances.scatter_(-1, index.unsqueeze(-2).expand(*distances.shape[:-1], 1), torch.inf)
    return torch.cat(chosen, dim=-1)


def _optimal(distances: Tensor, _: torch.Generator | None) -> Tensor:
    tables = distances.reshape(-1, *distances.shape[-2:]).double().cpu().numpy()
    columns = [torch.from_numpy(linear_sum_assignment(table)[1]) for table in tables]
    return torch.stack(columns).reshape(distances.shape[:-1]).to(distances.device)


def _random(distances: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        raise UserError("Random selection needs a `generator`, so that it can be repeated.")
    batch, way = distances.shape[:-2], distances.shape[-2]
    scores = torch.rand(*batch, distances.shape[-1], generator=generator, device=generator.device)
    return scores.argsort(dim=-1)[..., :way].to(distances.device)


_STRATEGIES: dict[str, Callable[[Tensor, torch.Generator | None], Tensor]] = {
    "closest": _closest,
    "optimal": _optimal,
    "random": _random,
    "farthest": lambda distances, generator: _closest(-distances, generator),
}
SELECTION_STRATEGIES = tuple(_STRATEGIES)

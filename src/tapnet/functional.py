r"""The equations of TapNet (Yoon, Seo, Moon, ICML 2019) as pure functions over tensors.

Shapes end in (way, dim) or (query, dim); any leading dimensions are batches of episodes. Symbols of the paper:
references $\phi_k$, modified references $\tilde\phi_k$, prototypes $c_k$, errors $\epsilon_k$, projection $M$, way
$N_c$, dim $L$.
Half-precision inputs are computed in float32, also inside `torch.autocast`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from tapnet.errors import UserError
from tapnet.trusted import trusted_way

P = ParamSpec("P")
R = TypeVar("R")

_HALF = (torch.float16, torch.bfloat16)


class NonFiniteError(UserError):
    """Features or references contain NaN."""


def _in_full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """The function with half-precision tensors widened and autocast off: a null space does not survive 8 bits.

    What it calls a `Tensor` is checked to be one, of floats, all of one type; labels are whole numbers.
    """
    names = list(signature(function).parameters)
    tensors = {name for name in names if function.__annotations__[name] == "Tensor"}

    def widen(value: object) -> object:
        return value.float() if isinstance(value, Tensor) and value.dtype in _HALF else value

    @wraps(function)
    def exact(*args: P.args, **kwargs: P.kwargs) -> R:
        wide, named = [*map(widen, args)], {key: widen(value) for key, value in kwargs.items()}
        given = (*zip(names, wide, strict=False), *named.items())
        device = _checked({name: value for name, value in given if name in tensors})
        with torch.autocast(device, enabled=False):
            return function(*wide, **named)  # type: ignore[arg-type]

    return exact


def _checked(tensors: dict[str, Any]) -> str:
    """Their device, or a sentence that says which of them is not what was needed."""
    for name, value in tensors.items():
        if name == "labels":
            check_labels(value)
        elif not isinstance(value, Tensor) or not value.is_floating_point():
            raise UserError(f"`{name}` needs to be a tensor of floats, got {_kind(value)}.")
        elif value.dim() < 2:
            raise UserError(f"`{name}` needs the shape (..., n, dim), got {tuple(value.shape)}.")
    kinds = {name: value.dtype for name, value in tensors.items() if name != "labels"}
    if len(set(kinds.values())) > 1:
        found = ", ".join(f"{name} {_kind(tensors[name])}" for name in kinds)
        raise UserError(f"Needed tensors of one type, got {found}: convert them with .to(dtype).")
    return next((value.device.type for value in tensors.values()), "cpu")


def check_labels(labels: Any) -> Tensor:
    """The labels, or a sentence that says what they need to be."""
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
        raise UserError(f"Labels need to be a tensor of int64, got {_kind(labels)}: give torch.tensor([0, 1, …]).")
    if not labels.numel():
        raise UserError("An episode needs labels 0 to way - 1, got none.")
    return labels


def _kind(value: Any) -> str:
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__


@_in_full_precision
def class_prototypes(features: Tensor, labels: Tensor, way: int) -> Tensor:
    r"""The mean feature of every class: $c_k$, line 4 of Algorithm 1, shape (..., way, dim).

    `features` (..., n, dim), `labels` (..., n) with values 0 to way - 1; classes may differ in their number of shots.
    """
    checked = trusted_way() is None
    if features.shape[-2] != labels.shape[-1]:
        raise UserError(
            f"Expected one label per feature, got {features.shape[-2]} features and {labels.shape[-1]} labels."
        )
    if checked and not 0 <= int(labels.min()) <= int(labels.max()) < way:
        raise UserError(f"Labels of a {way}-way episode are 0 to {way - 1}, got {labels.min()} to {labels.max()}.")
    members = F.one_hot(labels, way).to(features.dtype)  # (..., n, way)
    shots = members.sum(dim=-2)
    if checked and (shots == 0).any():
        raise UserError(f"Every one of the {way} classes needs a support image, got {shots.int().tolist()} per class.")
    return members.mT @ features / shots.unsqueeze(-1)


@_in_full_precision
def modified_references(references: Tensor) -> Tensor:
    r"""Each reference pushed away from the mean of the others: $\tilde\phi_k$ of eq. (2), shape (..., way, dim)."""
    way = references.shape[-2]
    if way < 2:
        raise UserError(f"Modified references need at least 2 classes, got {way}.")
    others = references.sum(dim=-2, keepdim=True) - references
    return references - others / (way - 1)


@_in_full_precision
def projection_errors(references: Tensor, prototypes: Tensor, modified: bool = True) -> Tensor:
    r"""What the projection must hide: $\epsilon_k = \tilde\phi_k/\|\tilde\phi_k\| - c_k/\|c_k\|$, eq. (3).

    Without `modified`, $\phi_k$ itself is in the place of $\tilde\phi_k$: an ablation of the supplement.
    """
    if references.shape[-2:] != prototypes.shape[-2:]:
        raise UserError(
            "Expected one reference per prototype, of the same dim, got references "
            f"{tuple(references.shape)} and prototypes {tuple(prototypes.shape)}."
        )
    targets = modified_references(references) if modified else references
    return F.normalize(targets, dim=-1) - F.normalize(prototypes, dim=-1)


@_in_full_precision
def blended_references(references: Tensor, prototypes: Tensor, shots: Tensor, reference_shots: float) -> Tensor:
    r"""References drawn towards the prototypes: $(\kappa\phi_k + K_k c_k) / (\kappa + K_k)$, shape (..., way, dim).

    $K_k$, in `shots` (..., way, 1), are the examples of class k; its reference counts for $\kappa$ more, which are
    `reference_shots`. Inside the projection both have one direction, so this is the mean of the class with the
    reference as its prior. With $\kappa \to \infty$ the references stay, as in the paper.
    """
    if not 0 <= reference_shots < float("inf"):
        raise UserError(f"`reference_shots` needs to be a number from 0 on, got {reference_shots}.")
    return (reference_shots * references + shots * prototypes) / (reference_shots + shots)


@_in_full_precision
def null_space(errors: Tensor, dim: int | None = None, first: Tensor | None = None) -> Tensor:
    r"""An orthonormal basis that hides every error: $M = \mathrm{null}_D([\epsilon_1; \dots])$ of eq. (4), (..., L, D).

    D is `dim`, or L - way when `None`, at any rank of the errors. Householder reflections take the errors to the first
    `way` axes; M is what they make of the others, so M is orthogonal to the errors by construction, also when those are
    dependent. Below D = L - way the paper's M is not unique: ours depends on the order of the errors, and begins with
    the directions in `first` (..., n, L), where given, such as `reference_directions`.
    """
    way, length, dim = _checked_sizes(errors, dim)
    axes = torch.eye(length, dtype=errors.dtype, device=errors.device)[:, way : way + dim]
    return torch.ormqr(*torch.geqrf(_stacked(errors, first).mT), axes.expand(*errors.shape[:-2], length, dim))


def _stacked(errors: Tensor, first: Tensor | None) -> Tensor:
    return errors if first is None else torch.cat([errors, first.detach()], dim=-2)


@_in_full_precision
def reference_directions(references: Tensor, errors: Tensor) -> Tensor:
    """Orthonormal directions in which the projected references differ, largest difference first, (..., way - 1, L).

    With these as the first columns of M, D = way - 1 loses nothing: any further direction adds the same to the
    distances of a query from all references. Fewer of them are the best plane to look at.
    """
    way, _, _ = _checked_sizes(errors, None, references)
    inside = residuals(references.detach(), errors.detach())
    centered = inside - inside.mean(dim=-2, keepdim=True)
    directions: Tensor = torch.linalg.svd(centered, full_matrices=False).Vh[..., : way - 1, :]
    return directions


@_in_full_precision
def projected_distances(
    queries: Tensor,
    references: Tensor,
    errors: Tensor,
    dim: int | None = None,
    differentiable: bool = False,
    squared: bool = True,
) -> Tensor:
    r"""Squared distances inside the projection, $\|M(x) - M(\phi_k)\|^2$ of eq. (1), shape (..., query, way).

    M is `null_space(errors, dim)` and is never formed. Vectors are projected first and subtracted then, so no distance
    is negative or a difference of large squares. Gradients reach queries and references; the projection is a constant
    unless `differentiable` (at full dimension only), with which short training gets further. Without `squared` they are
    the distances themselves, as the paper prints eq. (1), with gradient 0 at distance 0.
    """
    if differentiable:
        way, length, dim = _checked_sizes(errors, dim, queries)
        if dim < length - way:
            raise UserError(f"differentiable=True needs the full projection, dim={length - way}, got dim={dim}.")
        queries, references = (residuals(vectors, errors) for vectors in (queries, references))
    else:
        queries, references = (null_coordinates(vectors, errors, dim) for vectors in (queries, references))
    distances = torch.cdist(queries, references, compute_mode="donot_use_mm_for_euclid_dist")
    return distances.square() if squared else distances


@_in_full_precision
def linear_head(
    references: Tensor, errors: Tensor, dim: int | None = None, first: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Weight (..., way, L) and bias (..., way) of the linear layer with the softmax of the projected distances.

    $-\|xM - \phi_kM\|^2 = 2\,\phi_k M M^\top x^\top - \|\phi_k M\|^2 - \|xM\|^2$, and the last term is the same for
    every class.
    """
    way, length, dim = _checked_sizes(errors, dim)
    if dim == length - way:  # the whole null space needs no basis of its own
        inside = residuals(references, errors.detach())
        return 2 * inside, -inside.square().sum(dim=-1)
    inside = null_coordinates(references, errors, dim, first)  # (..., way, dim)
    padded = F.pad(inside, (way, length - way - dim))
    weight = 2 * torch.ormqr(*torch.geqrf(_stacked(errors.detach(), first).mT), padded.mT).mT
    return weight, -inside.square().sum(dim=-1)


@_in_full_precision
def null_coordinates(vectors: Tensor, errors: Tensor, dim: int | None = None, first: Tensor | None = None) -> Tensor:
    """Coordinates of each vector in `null_space(errors, dim, first)`, in O(L · way) per vector, shape (..., n, dim)."""
    way, _, dim = _checked_sizes(errors, dim, vectors)
    errors = _stacked(errors.detach(), first)
    batch = torch.broadcast_shapes(vectors.shape[:-2], errors.shape[:-2])
    reflections, scales = torch.geqrf(errors.expand(*batch, *errors.shape[-2:]).mT)
    columns = vectors.expand(*batch, *vectors.shape[-2:]).mT
    return torch.ormqr(reflections, scales, columns, transpose=True).mT[..., way : way + dim]


@_in_full_precision
def reflections(errors: Tensor) -> tuple[Tensor, Tensor]:
    r"""V (..., way, L) and T (..., way, way): rows $x - x V^\top T V$ from axis `way` on are `null_coordinates`.

    All Householder reflections at once, by two thin products: the compact WY form of Schreiber and Van Loan (1989).
    """
    _checked_sizes(errors, None)
    packed, scales = torch.geqrf(errors.detach().mT)
    vectors = packed.mT.triu(1)
    vectors.diagonal(dim1=-2, dim2=-1).fill_(1)
    system = (vectors @ vectors.mT).triu(1) * scales.unsqueeze(-1)
    system.diagonal(dim1=-2, dim2=-1).fill_(1)
    return vectors, torch.linalg.solve_triangular(system, torch.diag_embed(scales), upper=True)


@_in_full_precision
def residuals(vectors: Tensor, errors: Tensor) -> Tensor:
    """Each vector less its part in the span of the errors, with a gradient through both, shape (..., n, L)."""
    _checked_sizes(errors, None, vectors)
    span = torch.linalg.qr(errors.mT).Q  # (..., L, way)
    return vectors - vectors @ span @ span.mT  # type: ignore[no-any-return]


def _checked_sizes(errors: Tensor, dim: int | None, vectors: Tensor | None = None) -> tuple[int, int, int]:
    """(way, L, D) of a projection that exists, or a sentence that says why there is none."""
    way, length = errors.shape[-2:]
    if way < 2:
        raise UserError(f"A projection needs at least 2 classes, got {way}.")
    if way >= length:
        raise UserError(
            f"{way} classes leave no null space in {length} dimensions: needed way < dim; take fewer classes or a "
            "backbone with longer features."
        )
    if dim is not None and not 1 <= dim <= length - way:
        raise UserError(f"{way} classes in {length} dimensions allow dim from 1 to {length - way}, got {dim}.")
    for name, tensor in (("errors", errors), ("vectors", vectors)):
        if tensor is not None and _has_nan(tensor):
            raise NonFiniteError(f"The {name} contain NaN: the features or references have diverged.")
    if vectors is not None and vectors.shape[-1] != length:
        raise UserError(f"Needed vectors of dim {length} like the errors, got {vectors.shape[-1]}.")
    return way, length, length - way if dim is None else dim


def _has_nan(tensor: Tensor) -> bool:
    """Whether the sum is NaN: one pass over the values and no copy; opposite infinities count, too."""
    return trusted_way() is None and bool(tensor.detach().sum().isnan())


@_in_full_precision
def select_references(
    prototypes: Tensor,
    references: Tensor,
    strategy: str = "closest",
    generator: torch.Generator | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Which reference each class takes, no two the same: indices of shape (..., way).

    `closest` is the paper's: class after class takes the closest reference that is still free (squared distance), so
    the result depends on the order of the classes. `optimal` is the one assignment of least total distance, whatever
    the order. `farthest` and `random` (with a `generator`) are the supplement's ablations. A `bias` (available,) brings
    each reference nearer by twice its value, as in the authors' code.
    """
    way, available = prototypes.shape[-2], references.shape[-2]
    if strategy not in _STRATEGIES:
        raise UserError(f"Reference selection is one of {', '.join(_STRATEGIES)}, got {strategy!r}.")
    if way > available:
        raise UserError(f"{way} classes need {way} references, there are {available}: train with more ways.")
    if _has_nan(prototypes) or _has_nan(references):
        raise NonFiniteError("The prototypes or references contain NaN: the features have diverged.")
    prototypes, references = prototypes.detach(), references.detach()
    squares = references.square().sum(dim=-1).unsqueeze(-2)
    distances = squares - 2 * prototypes @ references.mT  # less the prototype's own square, which changes no choice
    if bias is not None:
        distances = distances - 2 * bias.detach()
    return _STRATEGIES[strategy](distances, generator)  # from (..., way, available)


def _closest(distances: Tensor, _: torch.Generator | None) -> Tensor:
    distances, chosen = distances.clone(), []
    for k in range(distances.shape[-2]):
        index = distances[..., k, :].argmin(dim=-1, keepdim=True)  # (..., 1)
        chosen.append(index)
        distances.scatter_(-1, index.unsqueeze(-2).expand(*distances.shape[:-1], 1), torch.inf)
    return torch.cat(chosen, dim=-1)


def _farthest(distances: Tensor, generator: torch.Generator | None) -> Tensor:
    return _closest(-distances, generator)


def _optimal(distances: Tensor, _: torch.Generator | None) -> Tensor:
    tables = distances.reshape(-1, *distances.shape[-2:]).double().cpu().numpy()
    columns = [torch.from_numpy(linear_sum_assignment(table)[1]) for table in tables]
    return torch.stack(columns).reshape(distances.shape[:-1]).to(distances.device)


def _random(distances: Tensor, generator: torch.Generator | None) -> Tensor:
    if generator is None:
        raise UserError("Random selection needs a `generator`, so that it can be repeated.")
    batch, way = distances.shape[:-2], distances.shape[-2]
    lots = torch.rand(*batch, distances.shape[-1], generator=generator, device=generator.device)
    return lots.argsort(dim=-1)[..., :way].to(distances.device)


_STRATEGIES: dict[str, Callable[[Tensor, torch.Generator | None], Tensor]] = {
    "closest": _closest,
    "optimal": _optimal,
    "random": _random,
    "farthest": _farthest,
}
SELECTION_STRATEGIES = tuple(_STRATEGIES)

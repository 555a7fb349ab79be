r"""The equations of TapNet (Yoon, Seo, Moon, ICML 2019) as pure functions over tensors.

Shapes end in (way, dim) or (query, dim); any leading dimensions are batches of episodes. Symbols of the paper:
references $\phi_k$, modified references $\tilde\phi_k$, prototypes $c_k$, errors $\epsilon_k$, projection $M$, way
$N_c$, dim $L$. Half-precision inputs are computed in float32, also inside `torch.autocast`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn import functional as F

from tapnet.errors import NonFiniteError, UserError

SELECTION_STRATEGIES = ("closest", "optimal", "random", "farthest")
P = ParamSpec("P")
R = TypeVar("R")


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function of float tensors (..., n, dim) to compute in float32 or float64, whatever autocast says.

    A null space does not survive the 8 bits of half precision, which is widened to float32.
    """

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        wide_args, wide_kwargs = [*map(widened, args)], {name: widened(value) for name, value in kwargs.items()}
        values = [*wide_args, *wide_kwargs.values()]
        tensors = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
        if not tensors or tensors[0] is not values[0] or values[0].dim() < 2:
            got = type_name(values[0]) if values else "nothing"
            got += f" of shape {tuple(values[0].shape)}" if values and isinstance(values[0], Tensor) else ""
            raise UserError(f"`{function.__name__}` takes tensors of floats of shape (..., n, dim), got {got}.")
        if len(dtypes := dict.fromkeys(map(type_name, tensors))) > 1:
            got = f"got {' and '.join(dtypes)}: convert them with .to(dtype)"
            raise UserError(f"`{function.__name__}` takes tensors of one dtype, {got}.")
        with torch.autocast(tensors[0].device.type, enabled=False):
            return function(*wide_args, **wide_kwargs)

    return wrapper


def widened(value: Any) -> Any:
    """Return a tensor of floats in float64 if it is that, else in float32; anything else as it is."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    return value.to(torch.promote_types(value.dtype, torch.float32))


def type_name(value: Any) -> str:
    """Return the dtype of a tensor, such as `float32`, or the name of the type of anything else."""
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__


def check_labels(labels: Any, way: int | None = None) -> int:
    """Return the number of classes; raise UserError unless labels (..., n) are int64 and all of 0 to way - 1."""
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
        raise UserError(f"Labels need to be a tensor of int64, got {type_name(labels)}: pass torch.tensor([0, 1, …]).")
    if not labels.numel():
        raise UserError("An episode needs labels 0 to way - 1, got none.")
    way = int(labels.max()) + 1 if way is None else way
    if not 0 <= int(labels.min()) <= int(labels.max()) < way:
        raise UserError(f"Labels of a {way}-way episode are 0 to {way - 1}, got {labels.min()} to {labels.max()}.")
    if way > labels.shape[-1]:
        raise UserError(f"Every one of the {way} classes needs a support image, got {labels.shape[-1]} images.")
    if ((shots := F.one_hot(labels, way).sum(dim=-2)) == 0).any():
        raise UserError(f"Every one of the {way} classes needs a support image, got {shots.tolist()} per class.")
    return way


def check_one_label_each(labels: Tensor, items: tuple[int, ...]) -> None:
    """Raise UserError unless labels have the shape (..., n) of the items that they are for."""
    if tuple(labels.shape) != tuple(items):
        got = f"got labels of shape {tuple(labels.shape)}; of one-hot labels pass `labels.argmax(-1)`"
        raise UserError(f"Expected one label from 0 to way - 1 per feature, of shape {tuple(items)}, {got}.")


@full_precision
def class_prototypes(features: Tensor, labels: Tensor, way: int, validate: bool = True) -> Tensor:
    r"""The mean feature of every class: $c_k$, line 4 of Algorithm 1, shape (..., way, dim).

    `features` (..., n, dim), `labels` (..., n) with values 0 to way - 1; classes may differ in their number of shots.
    Without `validate` the values of the labels are not looked at, for which the host would wait for a GPU.
    """
    if validate:
        check_labels(labels, way)
    check_one_label_each(labels, features.shape[:-1])
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
        got = f"got references {tuple(references.shape)} and prototypes {tuple(prototypes.shape)}"
        raise UserError(f"Expected one reference per prototype, of the same dim, {got}.")
    targets = modified_references(references) if modified else references
    return F.normalize(targets, dim=-1) - F.normalize(prototypes, dim=-1)


def _projection_sizes(errors: Tensor, dim: int | None, vectors: Tensor | None = None) -> tuple[int, int, int]:
    """Return (way, L, D) of the projection that hides the errors; raise UserError if there is none."""
    way, length = errors.shape[-2:]
    if way < 2:
        raise UserError(f"A projection needs at least 2 classes, got {way}.")
    if way >= length:
        advice = "expected way < dim; use fewer classes or a backbone with longer features"
        raise UserError(f"{way} classes leave no null space in {length} dimensions: {advice}.")
    if dim is not None and not 1 <= dim <= length - way:
        raise UserError(f"Expected a projection of {way} classes to 1 to {length - way} dimensions, got {dim}.")
    if vectors is not None and vectors.shape[-1] != length:
        raise UserError(f"Expected vectors of dim {length} like the errors, got {vectors.shape[-1]}.")
    return way, length, length - way if dim is None else dim


@full_precision
def null_space(errors: Tensor, dim: int | None = None, leading_directions: Tensor | None = None) -> Tensor:
    r"""An orthonormal basis that hides every error: $M = \mathrm{null}_D([\epsilon_1; \dots])$ of eq. (4), (..., L, D).

    D is `dim`, or L - way if `None`, whatever the rank of the errors. Householder reflections map the errors onto the
    first `way` axes; M is the image of the other axes, so it is orthogonal to the errors by construction, even if they
    are linearly dependent. For D < L - way the paper's M is not unique: ours depends on the order of the errors and
    starts with the `leading_directions` (..., n, L), such as `reference_directions`, if they are given.
    """
    way, length, dim = _projection_sizes(errors, dim)
    axes = torch.eye(length, dtype=errors.dtype, device=errors.device)[:, way : way + dim]
    axes = axes.expand(*errors.shape[:-2], length, dim)
    return torch.ormqr(*torch.geqrf(_stacked(errors, leading_directions).mT), axes)


@full_precision
def projected_distances(
    queries: Tensor, references: Tensor, errors: Tensor, dim: int | None = None, differentiable: bool = False
) -> Tensor:
    r"""Squared distances inside the projection, $\|M(x) - M(\phi_k)\|^2$ of eq. (1), shape (..., query, way).

    M is `null_space(errors, dim)`, but never formed. Vectors are projected before they are subtracted, so no distance
    is a difference of large squares. Gradients reach queries and references, and the projection if `differentiable` (at
    full dimension only), which helps short training. The paper prints the distance itself, their code has its square.
    """
    if differentiable:
        if dim is not None:
            raise UserError(f"differentiable=True needs the full projection, dim=None, got dim={dim}.")
        queries, references = (residuals(vectors, errors) for vectors in (queries, references))
    else:
        queries, references = (null_coordinates(vectors, errors, dim) for vectors in (queries, references))
    return euclidean_distances(queries, references).square()


def euclidean_distances(queries: Tensor, points: Tensor) -> Tensor:
    """Distances (..., n, m) of queries (..., n, dim) and points (..., m, dim), never as a difference of squares."""
    return torch.cdist(queries, points, compute_mode="donot_use_mm_for_euclid_dist")


@full_precision
def null_coordinates(
    vectors: Tensor, errors: Tensor, dim: int | None = None, leading_directions: Tensor | None = None
) -> Tensor:
    """Coordinates (..., n, dim) of each vector in the basis `null_space`, in O(L · way) per vector."""
    way, _, dim = _projection_sizes(errors, dim, vectors)
    errors = _stacked(errors.detach(), leading_directions)
    batch = torch.broadcast_shapes(vectors.shape[:-2], errors.shape[:-2])
    reflections, scales = torch.geqrf(errors.expand(*batch, *errors.shape[-2:]).mT)
    columns = vectors.expand(*batch, *vectors.shape[-2:]).mT
    return torch.ormqr(reflections, scales, columns, transpose=True).mT[..., way : way + dim]


def _stacked(errors: Tensor, directions: Tensor | None) -> Tensor:
    return errors if directions is None else torch.cat([errors, directions.detach()], dim=-2)


@full_precision
def residuals(vectors: Tensor, errors: Tensor) -> Tensor:
    """Each vector less its part in the span of the errors, with a gradient through both, shape (..., n, L)."""
    _projection_sizes(errors, None, vectors)
    span = torch.linalg.qr(errors.mT).Q  # (..., L, way)
    return vectors - vectors @ span @ span.mT


@full_precision
def linear_head(
    references: Tensor, errors: Tensor, dim: int | None = None, leading_directions: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Weight (..., way, L) and bias (..., way) of the linear layer with the same softmax as the projected distances.

    $-\|xM - \phi_kM\|^2 = 2\,\phi_k M M^\top x^\top - \|\phi_k M\|^2 - \|xM\|^2$, and the last term is the same for
    every class.
    """
    way, length, dim = _projection_sizes(errors, dim)
    if dim == length - way:  # the whole null space needs no basis of its own
        inside = residuals(references, errors.detach())
        return 2 * inside, -inside.square().sum(dim=-1)
    inside = null_coordinates(references, errors, dim, leading_directions)  # (..., way, dim)
    padded = F.pad(inside, (way, length - way - dim))
    weight = 2 * torch.ormqr(*torch.geqrf(_stacked(errors.detach(), leading_directions).mT), padded.mT).mT
    return weight, -inside.square().sum(dim=-1)


@full_precision
def reference_directions(references: Tensor, errors: Tensor) -> Tensor:
    """Orthonormal directions in which the projected references differ, largest difference first, (..., way - 1, L).

    With these as the first columns of M, D = way - 1 loses nothing: any further direction adds the same amount to a
    query's distance from every reference.
    """
    way, _, _ = _projection_sizes(errors, None, references)
    inside = residuals(references.detach(), errors.detach())
    centered = inside - inside.mean(dim=-2, keepdim=True)
    return torch.linalg.svd(centered, full_matrices=False).Vh[..., : way - 1, :]


@full_precision
def blended_references(references: Tensor, prototypes: Tensor, shots: Tensor, reference_shots: float) -> Tensor:
    r"""References moved towards the prototypes: $(\kappa\phi_k + K_k c_k) / (\kappa + K_k)$, shape (..., way, dim).

    Class k has $K_k$ examples (`shots`, shape (..., way, 1)), and its reference counts as $\kappa$ more. Inside the
    projection the two point the same way, so this is the class mean with the reference as its prior.
    """
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
    if strategy not in SELECTION_STRATEGIES:
        raise UserError(f"Reference selection is one of {', '.join(SELECTION_STRATEGIES)}, got {strategy!r}.")
    if way > available:
        raise UserError(f"{way} classes need {way} references, there are {available}: train with more ways.")
    prototypes, references = prototypes.detach(), references.detach()
    if (prototypes.sum() + references.sum()).isnan():  # one pass over the values; opposite infinities count, too
        raise NonFiniteError("The prototypes or references contain NaN: they have diverged.")
    squares = references.square().sum(dim=-1).unsqueeze(-2)
    distances = squares - 2 * prototypes @ references.mT  # (..., way, available), less the prototypes' squares
    if bias is not None:
        distances = distances - 2 * bias.detach()
    if strategy == "optimal":
        return _optimal(distances)
    if strategy != "random":
        return _closest(distances if strategy == "closest" else -distances)
    if generator is None:
        raise UserError("Random selection needs a `generator`, so that it can be repeated.")
    scores = torch.rand(*distances.shape[:-2], available, generator=generator, device=generator.device)
    return scores.argsort(dim=-1)[..., :way].to(distances.device)


def _closest(distances: Tensor) -> Tensor:
    distances, chosen = distances.clone(), []
    for k in range(distances.shape[-2]):
        index = distances[..., k, :].argmin(dim=-1, keepdim=True)  # (..., 1)
        chosen.append(index)
        distances.scatter_(-1, index.unsqueeze(-2).expand(*distances.shape[:-1], 1), torch.inf)
    return torch.cat(chosen, dim=-1)


def _optimal(distances: Tensor) -> Tensor:
    tables = distances.reshape(-1, *distances.shape[-2:]).double().cpu().numpy()
    columns = [torch.from_numpy(linear_sum_assignment(table)[1]) for table in tables]
    return torch.stack(columns).reshape(distances.shape[:-1]).to(distances.device)

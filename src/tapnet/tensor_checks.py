"""What the functions of `functional.py` require of their arguments, kept apart from the equations."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from tapnet.errors import NonFiniteError, UserError
from tapnet.trusted import trusted_way

P = ParamSpec("P")
R = TypeVar("R")

_LONGEST = 1e18  # in float32 the squared distance of two longer features may be infinite


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function to compute in float32 or float64: half-precision tensors are widened and autocast is off.

    A null space does not survive 8 bits. Arguments annotated as `Tensor` are checked: `labels` must be int64, the
    others floats of one dtype with at least two dimensions.
    """
    names = list(signature(function).parameters)
    tensor_names = {name for name in names if function.__annotations__[name] == "Tensor"}

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        wide_args, wide_kwargs = [*map(_widen, args)], {name: _widen(value) for name, value in kwargs.items()}
        arguments = dict(zip(names, wide_args, strict=False)) | wide_kwargs
        tensors = {name: value for name, value in arguments.items() if name in tensor_names}
        _check_tensors(tensors)
        device = next((tensor.device.type for tensor in tensors.values()), "cpu")
        with torch.autocast(device, enabled=False):
            return function(*wide_args, **wide_kwargs)

    return wrapper


def _widen(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16) else value


def _check_tensors(tensors: dict[str, Any]) -> None:
    for name, value in tensors.items():
        if name == "labels":
            check_labels(value)
        elif not isinstance(value, Tensor) or not value.is_floating_point():
            raise UserError(f"`{name}` needs to be a tensor of floats, got {type_name(value)}.")
        elif value.dim() < 2:
            raise UserError(f"`{name}` needs the shape (..., n, dim), got {tuple(value.shape)}.")
    dtypes = {name: type_name(value) for name, value in tensors.items() if name != "labels"}
    if len(set(dtypes.values())) > 1:
        listed = ", ".join(f"{name} {dtype}" for name, dtype in dtypes.items())
        raise UserError(f"Expected tensors of one dtype, got {listed}: convert them with .to(dtype).")


def check_labels(labels: Any) -> Tensor:
    """Return the labels; raise UserError unless they are a tensor of int64 with at least one element."""
    if not isinstance(labels, Tensor) or labels.dtype != torch.int64:
        raise UserError(f"Labels need to be a tensor of int64, got {type_name(labels)}: pass torch.tensor([0, 1, …]).")
    if not labels.numel():
        raise UserError("An episode needs labels 0 to way - 1, got none.")
    return labels


def type_name(value: Any) -> str:
    """Return the dtype of a tensor, such as `float32`, or the name of the type of anything else."""
    return str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else type(value).__name__


def check_support(features: Tensor, labels: Tensor, way: int) -> None:
    """Raise UserError unless every feature has a label from 0 to way - 1 and every class a feature."""
    if features.shape[-2] != labels.shape[-1]:
        raise UserError(
            f"Expected one label per feature, got {features.shape[-2]} features and {labels.shape[-1]} labels."
        )
    if trusted_way() is not None:
        return
    if not 0 <= int(labels.min()) <= int(labels.max()) < way:
        raise UserError(f"Labels of a {way}-way episode are 0 to {way - 1}, got {labels.min()} to {labels.max()}.")
    shots = F.one_hot(labels, way).sum(dim=-2)
    if (shots == 0).any():
        raise UserError(f"Every one of the {way} classes needs a support image, got {shots.tolist()} per class.")


def projection_sizes(errors: Tensor, dim: int | None, vectors: Tensor | None = None) -> tuple[int, int, int]:
    """Return (way, L, D) of the projection that hides the errors; raise UserError if there is none."""
    way, length = errors.shape[-2:]
    if way < 2:
        raise UserError(f"A projection needs at least 2 classes, got {way}.")
    if way >= length:
        raise UserError(
            f"{way} classes leave no null space in {length} dimensions: expected way < dim; use fewer classes or a "
            "backbone with longer features."
        )
    if dim is not None and not 1 <= dim <= length - way:
        raise UserError(f"Expected a projection of {way} classes to 1 to {length - way} dimensions, got {dim}.")
    check_not_nan(errors, "errors")
    if vectors is not None:
        check_not_nan(vectors, "vectors")
        if vectors.shape[-1] != length:
            raise UserError(f"Expected vectors of dim {length} like the errors, got {vectors.shape[-1]}.")
    return way, length, length - way if dim is None else dim


def check_not_nan(tensor: Tensor, name: str) -> None:
    """Raise NonFiniteError if the sum is NaN: one pass over the values, no copy; opposite infinities count, too."""
    if trusted_way() is None and bool(tensor.detach().sum().isnan()):
        raise NonFiniteError(f"The {name} contain NaN: the features or references have diverged.")


def check_features(features: Tensor) -> Tensor:
    """Return the features (n, ...); raise NonFiniteError if some are not finite, or so long that distances overflow."""
    wrong = ~(torch.linalg.vector_norm(features.flatten(1), dim=1) <= _LONGEST)  # NaN is not below anything
    if wrong.any():
        raise NonFiniteError(
            f"The features of {int(wrong.sum())} of {len(features)} images contain NaN, infinity or values too large "
            f"to compare (expected a norm of at most {_LONGEST:g}): the network has diverged, or vectors of your own "
            "need to be scaled down."
        )
    return features

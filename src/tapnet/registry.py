"""Builds backbones and methods by name, with options that a user may have misspelt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from numbers import Integral
from typing import Any, TypeVar

from tapnet.errors import UserError

T = TypeVar("T")


def build(what: str, kind: Callable[..., T], first: object, options: Mapping[str, Any]) -> T:
    """Return `kind(first, **options)`; raise UserError that names unknown, missing or wrong options."""
    parameters = list(signature(kind).parameters.values())[1:]
    known = [each.name for each in parameters]
    unknown = [name for name in options if name not in known]
    missing = [each.name for each in parameters if each.default is each.empty and each.name not in options]
    if unknown:
        raise UserError(f"{what} has no option {', '.join(unknown)}; it has {', '.join(known) or 'none'}.")
    if missing:
        raise UserError(f"{what} needs the option {', '.join(missing)}.")
    for each in parameters:
        if each.annotation in (bool, "bool") and not isinstance(options.get(each.name, False), bool):
            raise UserError(f"{what}: `{each.name}` is true or false, got {options[each.name]!r}.")
        if each.annotation in (int, "int") and not _is_whole(options.get(each.name, 0)):
            raise UserError(f"{what}: `{each.name}` is a whole number, got {options[each.name]!r}.")
    try:
        return kind(first, **options)
    except TypeError as error:
        raise UserError(f"{what} does not take these options: {error}.") from error


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)

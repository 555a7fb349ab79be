"""Builds backbones and methods by name, with options that a user may have misspelt."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import Parameter, signature
from numbers import Integral
from typing import Any, TypeVar

from tapnet.errors import UserError

T = TypeVar("T")


def build(what: str, kind: Callable[..., T], first: object, options: Mapping[str, Any]) -> T:
    """Return `kind(first, **options)`; raise UserError that names unknown, missing or wrong options."""
    parameters = options_of(kind)
    unknown = [name for name in options if name not in parameters]
    missing = [name for name, option in parameters.items() if option.default is option.empty and name not in options]
    if unknown:
        raise UserError(f"{what} has no option {', '.join(unknown)}; it has {', '.join(parameters) or 'none'}.")
    if missing:
        raise UserError(f"{what} needs the option {', '.join(missing)}.")
    for name, value in options.items():
        if parameters[name].annotation in (bool, "bool") and not isinstance(value, bool):
            raise UserError(f"{what}: `{name}` is true or false, got {value!r}.")
        if parameters[name].annotation in (int, "int") and not _is_whole(value):
            raise UserError(f"{what}: `{name}` is a whole number, got {value!r}.")
    try:
        return kind(first, **options)
    except TypeError as error:
        raise UserError(f"{what} does not take these options: {error}.") from error


def options_of(kind: Callable[..., object]) -> dict[str, Parameter]:
    """Return the parameters of a class after the first, with those of its base class if it passes `**options` on."""
    _, *parameters = signature(kind).parameters.values()
    named = {option.name: option for option in parameters if option.kind is not option.VAR_KEYWORD}
    if isinstance(kind, type) and len(named) < len(parameters):
        return options_of(kind.__mro__[1]) | named
    return named


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)

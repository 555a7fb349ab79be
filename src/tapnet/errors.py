"""Exceptions for errors that the user can fix. Any other exception is a bug."""

from __future__ import annotations


class UserError(ValueError):
    """Wrong input: the message says what was expected, what was received and what to do.

    `parameter` names the argument that would fix it, if there is one; the command line adds its flag.
    """

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class NotFoundError(UserError, FileNotFoundError):
    """A file or folder that was named does not exist."""


class NonFiniteError(UserError):
    """Features or references contain NaN."""


class Diverged(UserError):
    """The loss of a training episode or its gradient is not finite, or has exploded."""

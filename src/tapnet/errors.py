"""The exceptions that mean: the user can fix this. Anything else is a bug."""

from __future__ import annotations


class UserError(ValueError):
    """Wrong input: the message says what was expected, what came and what to do.

    `parameter` names the argument that would fix it, where there is one; the command line adds its flag.
    """

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class NotFoundError(UserError, FileNotFoundError):
    """A file or folder that was named does not exist."""

"""Exceptions that mean: the user can fix this."""


class UserError(ValueError):
    """Input that cannot be used; the message says what was expected, what was found and what to do."""

"""The exceptions that mean: the user can fix this. Anything else is a bug."""


class UserError(ValueError):
    """Wrong input: the message says what was expected, what came and what to do."""

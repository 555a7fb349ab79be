"""Episodes whose values need no check, because whoever made them made them well-formed.

A check that looks at the values of a tensor makes the host wait for the device that computes them. The training loop
makes its episodes itself and looks once per step, at the loss and its gradient, where everything that went wrong shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WAY: ContextVar[int | None] = ContextVar("trusted_way", default=None)


@contextmanager
def trusted_episode(way: int) -> Iterator[None]:
    """Inside, labels are 0 to way - 1 with a support image each, images lie in [0, 1], and no value is checked."""
    token = _WAY.set(way)
    try:
        yield
    finally:
        _WAY.reset(token)


def trusted_way() -> int | None:
    """The number of classes inside `trusted_episode`; `None` outside, where values need to be checked."""
    return _WAY.get()

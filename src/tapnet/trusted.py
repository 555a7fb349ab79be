"""Episodes whose values need no check, because they are well-formed by construction.

A check of the values of a tensor makes the host wait for the device that computes them. The training loop makes its
episodes itself and checks once per step, the loss and its gradient, where any error shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_WAY: ContextVar[int | None] = ContextVar("trusted_way", default=None)


@contextmanager
def trusted_episode(way: int) -> Iterator[None]:
    """Promise that labels are 0 to way - 1, each with a support image, and images in [0, 1], so nothing is checked."""
    token = _WAY.set(way)
    try:
        yield
    finally:
        _WAY.reset(token)


def trusted_way() -> int | None:
    """Return the number of classes inside `trusted_episode`; `None` outside, where values need to be checked."""
    return _WAY.get()

"""Descriptions of where the weights of a network come from, as checkpoints and results keep them.

A description is a list of parts, separated by semicolons: the networks that this one was initialized or distilled from,
each with its digest and its own origin in parentheses, and what differs from them. Earlier versions wrote digest and
origin of a single network as parts, too, the origin last.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from tapnet.checkpoint import Header
from tapnet.text import pluralize

_DIGITS = 12  # of a digest, enough to tell checkpoints apart
_NETWORK = re.compile(r"from ([^;]+?) after ([\d,]+) episodes?(?:(?:; | \()digest (\w+))?")


def initialized_from(networks: Sequence[Header], differences: Sequence[str]) -> str:
    """Return the origin of a network that starts with the weights of others, and how it differs from them."""
    return "; ".join([*(f"initialized from {_described(header)}" for header in networks), *differences])


def distilled_from(networks: Sequence[Header]) -> str:
    """Return the origin of a network that learns from the predictions of others."""
    return "; ".join(f"distilled from {_described(header)}" for header in networks)


def joined(*origins: str) -> str:
    """Return the origin of a network that has several, some of which may be empty."""
    return "; ".join(filter(None, origins))


def _described(header: Header) -> str:
    name = f"{header.recipe.name} after {pluralize(header.episode, 'episode')}"
    details = [f"digest {header.digest[:_DIGITS]}"] if header.digest else []
    details += [f"itself {header.origin}"] if header.origin else []
    return f"{name} ({'; '.join(details)})" if details else name


def with_current_words(origin: str) -> str:
    """Return an origin with the words of earlier versions replaced."""
    return origin.replace("begun with", "initialized from")


def direct_origin(origin: str) -> list[str]:
    """Return the parts of an origin without digests and without the networks that its networks learned from."""
    count = 1
    while count:  # from the innermost parentheses on
        origin, count = re.subn(r" \([^()]*\)", "", origin)
    parts = with_current_words(origin).split("; itself ")[0].split("; ")
    counts = Counter(part for part in parts if part and not part.startswith("digest "))
    return [
        part.replace(" from ", f" from {count} networks of ", 1) if count > 1 else part
        for part, count in counts.items()
    ]


def learned_from(origin: str) -> list[str]:
    """Return the parts of an origin that name a network which this one was initialized or distilled from."""
    return [part for part in direct_origin(origin) if part.startswith(("initialized from", "distilled from"))]


def earlier_networks(origin: str) -> list[tuple[str, int]]:
    """Return name and training episodes of all networks of an origin, and of theirs, each network once."""
    found = dict.fromkeys(_NETWORK.findall(with_current_words(origin)))
    return [(name, int(episodes.replace(",", ""))) for name, episodes, _ in found]

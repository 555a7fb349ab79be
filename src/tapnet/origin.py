"""Where the weights of a network come from, in words: checkpoints and results keep such a text, written and read here.

Such a text is a list of parts, separated by semicolons: the networks that this one was initialized or distilled from,
each with its digest; what differs from them; and last, or in parentheses, their own origin.
"""

from __future__ import annotations

import re
from collections import Counter

from tapnet.checkpoint import Header
from tapnet.wording import pluralize

_DIGITS = 12  # of a digest, enough to tell checkpoints apart
_NETWORK = re.compile(r"from ([^;]+?) after ([\d,]+) episodes?(?:(?:; | \()digest (\w+))?")


def network_words(header: Header, *differences: str) -> list[str]:
    """Return a trained network in words: its name and episodes, its digest, differences from it, and its origin."""
    words = [f"{header.recipe.name} after {pluralize(header.episode, 'episode')}"]
    words += [f"digest {header.digest[:_DIGITS]}"] if header.digest else []
    return [*words, *differences, *([f"itself {header.origin}"] if header.origin else [])]


def network_phrase(header: Header) -> str:
    """Return a trained network in words that may be listed beside others: all but its name in parentheses."""
    name, *lineage = network_words(header)
    return f"{name} ({'; '.join(lineage)})" if lineage else name


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
        part.replace(" from ", f" from {count} seeds of ", 1) if count > 1 else part for part, count in counts.items()
    ]


def learned_from(origin: str) -> list[str]:
    """Return the parts of an origin that name a network which this one was initialized or distilled from."""
    return [part for part in direct_origin(origin) if part.startswith(("initialized from", "distilled from"))]


def earlier_networks(origin: str) -> list[tuple[str, int]]:
    """Return name and training episodes of all networks of an origin, and of theirs, each network once."""
    found = dict.fromkeys(_NETWORK.findall(with_current_words(origin)))
    return [(name, int(episodes.replace(",", ""))) for name, episodes, _ in found]

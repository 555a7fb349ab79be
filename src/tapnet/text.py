"""Numbers with their nouns, differences, intervals, errors and tables as text."""

from __future__ import annotations

from collections.abc import Sequence


def pluralize(number: int, noun: str) -> str:
    """Return the number with its noun: 1 class, 2 classes, 3 queries, 1,000 images."""
    plural = "queries" if noun == "query" else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def difference(value: float | None) -> str:
    """Return the difference of two accuracies in percentage points, with its sign."""
    return "—" if value is None else f"{round(100 * value, 2) + 0.0:+.2f}"  # not -0.00


def half_width(value: float | None) -> str:
    """Return the half-width of an interval of accuracies in percentage points."""
    return "—" if value is None else f"± {100 * value:.2f}"


def class_half_width(value: float | None, at_most: float | None) -> str:
    """Return the half-width of an interval over classes, or what it is at most where it is lost in that of episodes."""
    return half_width(value) if at_most is None else f"not resolvable (at most {100 * at_most:.2f})"


def with_interval(accuracy: float, ci95: float) -> str:
    """Return an accuracy in percent with the half-width of its interval: 68.33 ± 0.09."""
    return f"{100 * accuracy:.2f} {half_width(ci95)}"


def one_line(error: BaseException) -> str:
    """Return what an error says, on one line."""
    return " ".join(str(error).split())


def overlap_note(overlap: bool) -> str:
    """Return what to add to the name of classes that the backbone has seen in pretraining."""
    return ", on which its backbone was pretrained" if overlap else ""


def shorten(text: str, most: int) -> str:
    """Return the text, without its middle if it has more than `most` characters."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 3
    return f"{text[: most - 1 - tail]}…{text[len(text) - tail :]}"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

"""Numbers with their nouns, differences, intervals, errors, names of strangers and tables as text."""

from __future__ import annotations

import csv
import difflib
import io
import re
import unicodedata
from collections.abc import Iterable, Sequence

_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_LATEX = str.maketrans(
    {"±": r"$\pm$", "−": "--", "—": "---", "×": r"$\times$"} | {sign: f"\\{sign}" for sign in "%_&#$"}
)


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


def printable(text: str) -> str:
    """Return a text in which characters that steer a terminal or turn its direction are escaped, as \\u001b."""
    return _STEERING.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def normalize_name(text: str) -> str:
    """Return a name as it is stored and printed: on one line, in valid Unicode, with composed accents.

    Some file systems store an accent as a character of its own, and Linux allows any bytes in a name, those that steer
    a terminal among them.
    """
    valid = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return _CONTROL.sub(lambda control: repr(control[0])[1:-1], unicodedata.normalize("NFC", valid))


def abbreviate(names: Sequence[str], shown: int = 5) -> str:
    """Return the first few names and how many more there are, as one text."""
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(normalize_name(name) for name in names[:shown]) + more


def did_you_mean(text: str, choices: Iterable[str]) -> str:
    """Return " (did you mean …?)" with the choice that is spelled most like the text, or nothing."""
    close = difflib.get_close_matches(text, list(choices), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def install_hint(extra: str) -> str:
    """Return the command that installs an extra, from a package index and from a checkout."""
    return f"pip install 'tapnet[{extra}]', or in a checkout pip install '.[{extra}]'"


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


def csv_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table as CSV with plain numbers: 65.90 for "65.90%", 0.70 for "± 0.70", 1000 for "1,000"."""
    stream = io.StringIO()
    number = re.compile(r"(?:± )?([-+]?[\d,]*\.?\d+)%?")
    plain = ([match[1].replace(",", "") if (match := number.fullmatch(cell)) else cell for cell in row] for row in rows)
    csv.writer(stream, lineterminator="\n").writerows([headings, *plain])
    return stream.getvalue()


def latex_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in LaTeX, to be used with the package booktabs."""
    first, *others = (" & ".join(cell.translate(_LATEX) for cell in line) + r" \\" for line in (headings, *rows))
    start = rf"\begin{{tabular}}{{l{'r' * (len(headings) - 1)}}}"
    return "\n".join([start, r"\toprule", first, r"\midrule", *others, r"\bottomrule", r"\end{tabular}", ""])

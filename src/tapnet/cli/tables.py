"""Tables, in which names may be folded but numbers are never broken, and prose; in a file or pipe nothing is folded."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

_FRAME = 3  # characters of a column's border and padding
_LEAST = 16  # characters of the first column


def print_table(headings: Sequence[str], rows: Sequence[Sequence[str]], bold: Sequence[int] = ()) -> None:
    """Print a table whose first column, of names, has the width that the others leave; `bold` are row numbers.

    If the terminal is narrower than the other columns, the table is wider than the terminal, so that no number breaks.
    """
    widths = [
        max(len(part) for part in (*heading.split(), *(line for cell in cells for line in cell.split("\n"))))
        for heading, *cells in zip(headings, *rows, strict=True)
    ]
    others = sum(width + _FRAME for width in widths[1:]) + _FRAME + 1
    first = min(max(map(len, (headings[0], *(row[0] for row in rows)))), max(_width() - others, _LEAST))
    table = Table()
    for number, (heading, width) in enumerate(zip(headings, [first, *widths[1:]], strict=True)):
        table.add_column(heading, width=width, justify="left" if number == 0 else "right")
    for number, (name, *numbers) in enumerate(rows):
        table.add_row(Text(fold(name, first)), *map(Text, numbers), style="bold" if number in bold else "")
    Console(width=first + others, highlight=False).print(table)


def print_prose(text: str, indent: int = 0) -> None:
    """Print a paragraph, wrapped at words on a terminal, else on one line."""
    if sys.stdout.isatty():
        Console().print(Padding(Text(text), (0, 0, 0, indent)))
    else:
        print(" " * indent + text)


def _width() -> int:
    """Return the columns of the terminal; a file or a pipe has any number."""
    return Console().width if sys.stdout.isatty() else sys.maxsize


def fold(name: str, width: int) -> str:
    """Return a name in lines of at most `width`, broken after hyphens, slashes and spaces if there are any."""
    lines = [""]
    for part in re.findall(r"[^-/ _]*[-/ _]?", name):
        while len(part) > width:
            room = width - len(lines[-1])
            lines[-1], part = lines[-1] + part[:room], part[room:]
            lines.append("")
        if len(lines[-1] + part.rstrip()) > width:
            lines.append("")
        lines[-1] += part
    return "\n".join(line.rstrip() for line in lines if line.strip())

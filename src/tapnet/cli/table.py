"""`tapnet table NAME`: a table of the paper with our results beside it."""

from __future__ import annotations

import argparse
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from tapnet.paper.tables import Filled

_RESULTS = Path("results")
_FRAME, _LEAST = 3, 16  # characters: the border and spaces of a column, a name in one line
_EXAMPLES = """tables:
  main-omniglot-mini    Table 1: Omniglot and miniImageNet
  main-tiered           Table 2: tieredImageNet
  episode-composition   supplement, Table 1: training classes against queries
  hyperparameters       supplement, Table 2: settings of meta-training
  references            supplement, section 2.3: settings of the references
  network-sizes         supplement, Table 3: miniImageNet by the size of the network
  network-sizes-tiered  supplement, Table 4: tieredImageNet with Conv4
  parameters            supplement, Table 5: number of parameters

A row with the name of a recipe is ours, made for smaller machines; the recipe says where it departs from the paper.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("name", metavar="NAME", help="see below")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="folder of kept results")


def run(args: argparse.Namespace) -> None:
    from tapnet.paper.results import read_ablations, read_results
    from tapnet.paper.tables import filled_table

    if not args.results.is_dir() and args.results != _RESULTS:
        raise FileNotFoundError(f"There is no folder {args.results}: give one that `--record` has filled.")
    filled = filled_table(args.name, [*read_results(args.results), *read_ablations(args.results)])
    console = Console()
    console.print(_laid_out(filled, console.width))
    for title, lines in (
        ("Where ours differs:", filled.notes),
        ("Run:", filled.runs),
        ("Not run; each with its command:", filled.commands),
    ):
        if lines:
            console.print(title, *(f"  {line}" for line in lines), sep="\n", highlight=False, soft_wrap=True)


def _laid_out(filled: Filled, width: int) -> Table:
    """Columns as narrow as their cells, so that names have the room; these break at hyphens, too."""
    first, *headings = filled.headings
    columns = zip(headings, *(cells for _, *cells in filled.rows), strict=True)
    widths = [max(map(len, (*heading.split(), *cells))) for heading, *cells in columns]
    room = width - 1 - _FRAME - sum(each + _FRAME for each in widths)
    table = Table(title=filled.title, title_justify="left")
    table.add_column(first, overflow="fold")
    for heading, each in zip(headings, widths, strict=True):
        table.add_column(heading, max_width=each, overflow="fold")
    for name, *cells in filled.rows:
        table.add_row(fill(name, max(room, _LEAST)), *cells, style="bold" if name.endswith(", ours") else "")
    return table

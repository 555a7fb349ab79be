"""`tapnet table NAME`: a table of the paper with our results beside it."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table

_RESULTS = Path("results")
_EXAMPLES = """tables:
  main-omniglot-mini    Table 1: Omniglot and miniImageNet
  main-tiered           Table 2: tieredImageNet
  episode-composition   supplement, Table 1: training classes against queries
  hyperparameters       supplement, Table 2: settings of meta-training
  references            supplement, section 2.3: settings of the references
  network-sizes         supplement, Table 3: miniImageNet by the size of the network
  network-sizes-tiered  supplement, Table 4: tieredImageNet with Conv4
  parameters            supplement, Table 5: number of parameters
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument("name", metavar="NAME", help="see below")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="folder of kept results")


def run(args: argparse.Namespace) -> None:
    from tapnet.analysis.tables import filled_table
    from tapnet.results import read_ablations, read_results

    if not args.results.is_dir() and args.results != _RESULTS:
        raise FileNotFoundError(f"There is no folder {args.results}: give one that `--record` has filled.")
    filled = filled_table(args.name, [*read_results(args.results), *read_ablations(args.results)])
    table = Table(title=filled.title, title_justify="left")
    for heading in filled.headings:
        table.add_column(heading, no_wrap=heading == "recipe")
    for row in filled.rows:
        table.add_row(*row, style="bold" if row[0].endswith(", ours") else "")
    console = Console()
    console.print(table)
    for title, lines in (("Run:", filled.runs), ("Not run; each with its command:", filled.commands)):
        if lines:
            console.print(title, *(f"  {line}" for line in lines), sep="\n", highlight=False, soft_wrap=True)

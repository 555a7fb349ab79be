"""`tapnet table NAME`: a table of the paper with our results beside it."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console
from rich.table import Table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="main-omniglot-mini, main-tiered, network-sizes or network-sizes-tiered")
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of kept results")


def run(args: argparse.Namespace) -> None:
    from tapnet.analysis.tables import filled_table
    from tapnet.results import read_results

    filled = filled_table(args.name, read_results(args.results))
    table = Table(title=filled.title, title_justify="left")
    for heading in filled.headings:
        table.add_column(heading)
    for row in filled.rows:
        table.add_row(*row, style="bold" if row[0].startswith("TapNet") else "")
    console = Console()
    console.print(table)
    if filled.commands:
        console.print("Not run; each with its command:", *(f"  {command}" for command in filled.commands), sep="\n")

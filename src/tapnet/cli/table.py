"""`tapnet table NAME`: a table of the paper with our results beside it."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from tapnet.cli.options import listing
from tapnet.cli.progress import ERRORS
from tapnet.cli.tables import print_table
from tapnet.errors import NotFoundError

_RESULTS = Path("results")
_OURS = ", ours"  # ends the names of our rows
TABLES = {
    "main-omniglot-mini": "Table 1: Omniglot and miniImageNet",
    "main-tiered": "Table 2: tieredImageNet",
    "episode-composition": "supplement, Table 1: training classes against queries",
    "hyperparameters": "supplement, Table 2: settings of meta-training",
    "references": "supplement, section 2.3: settings of the references",
    "network-sizes": "supplement, Table 3: miniImageNet by the size of the network",
    "network-sizes-tiered": "supplement, Table 4: tieredImageNet with Conv4",
    "parameters": "supplement, Table 5: number of parameters",
    "rivals": "every method on Omniglot, from our runs",
    "rivals-mini-imagenet": "methods on miniImageNet, from our runs",
}
_LIST = f"""{listing("tables", TABLES)}
A row with the name of a recipe is ours, made for smaller machines; the recipe says where it departs from the paper.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _LIST
    parser.add_argument("name", nargs="?", choices=TABLES, metavar="NAME", help="see below; without one, list them")
    parser.add_argument("--results", type=Path, default=_RESULTS, help="folder of recorded results")


def run(args: argparse.Namespace) -> None:
    if args.name is None:
        print(_LIST, end="")
        return

    from tapnet.paper.results import read_ablations, read_results
    from tapnet.paper.tables import filled_table

    filled = filled_table(args.name, [*read_results(args.results), *read_ablations(args.results)])
    if not args.results.is_dir():
        if args.results != _RESULTS:
            raise NotFoundError(f"There is no folder {args.results}: expected one that `--record` has filled.")
        ERRORS.print(f"There is no folder {_RESULTS} here, so ours are left out: give that of a checkout as --results.")
        published = [row for row in filled.rows if not row[0].endswith(_OURS)]
        filled = replace(filled, rows=published, commands=[])
    print(filled.title)
    ours = [number for number, (name, *_) in enumerate(filled.rows) if name.endswith(_OURS)]
    print_table(filled.headings, filled.rows, bold=ours)
    for title, lines in (
        ("Notes:", filled.notes),
        ("Run:", filled.runs),
        ("Not run; each with its command:", filled.commands),
    ):
        if lines:
            print(title, *(f"  {line}" for line in lines), sep="\n")

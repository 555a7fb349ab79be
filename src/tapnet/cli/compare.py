"""`tapnet compare CHECKPOINT CHECKPOINT …`: the same episodes for all, and the paired differences."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from tapnet.cli.evaluate import candidate
from tapnet.cli.options import add_device, add_episodes, episode_spec, output_file
from tapnet.cli.tables import print_table
from tapnet.errors import UserError

if TYPE_CHECKING:
    from tapnet.evaluation.candidates import Candidate

_EXAMPLES = """examples:
  tapnet compare runs/tapnet runs/protonet --shot 1
  tapnet compare runs/tapnet-seed0 runs/tapnet-seed1 runs/protonet --out comparison.html
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.add_argument(
        "checkpoints", nargs="+", help="two or more checkpoints or run folders; runs that differ in seed are grouped"
    )
    add_episodes(parser)
    parser.add_argument("--no-class-interval", action="store_true", help="leave out the interval over classes: faster")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--out", type=output_file(".md", ".html"), help="write a report: .md with its plot, or .html, all in one file"
    )
    add_device(parser, precision="float32")


def run(args: argparse.Namespace) -> None:
    from tapnet.evaluation.comparison import compare
    from tapnet.evaluation.comparison_report import NOTE, tables, title, write

    if len(args.checkpoints) < 2:
        raise UserError(f"A comparison needs at least 2 checkpoints, got {len(args.checkpoints)}.")
    with _progress() as progress:
        bar = progress.add_task("", run="", total=args.episodes)

        def candidates() -> Iterator[Candidate]:
            for checkpoint in args.checkpoints:
                progress.update(bar, completed=0, run=Path(checkpoint).name)
                yield candidate(checkpoint, args)

        result = compare(
            candidates(),
            episode_spec(args),
            bootstrap=not args.no_class_interval,
            progress=lambda done, _: progress.update(bar, completed=done),
        )
    if args.json:
        print(json.dumps(result.as_dict()))
    else:
        print(title(result))
        for table in tables(result):
            print(f"\n{table.title}")
            print_table(table.headings, table.rows)
        Console(highlight=False).print(NOTE)
    if args.out:
        print(*(f"Wrote {path}" for path in write(result, args.out)), sep="\n", file=sys.stderr)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.fields[run]}"),
        BarColumn(bar_width=12),
        TextColumn("{task.completed}/{task.total} episodes"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )

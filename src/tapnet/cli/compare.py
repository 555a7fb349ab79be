"""`tapnet compare CHECKPOINT CHECKPOINT …`: the same episodes for all, and the paired differences."""

from __future__ import annotations

import argparse
import json
import sys

from tapnet.cli.evaluate import candidates, check_found
from tapnet.cli.options import add_device, add_episodes, episode_spec, output_file
from tapnet.cli.progress import episode_progress
from tapnet.cli.tables import print_prose, print_table
from tapnet.errors import UserError

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
    if len(args.checkpoints) < 2:
        raise UserError(f"A comparison needs at least 2 checkpoints, got {len(args.checkpoints)}.")
    check_found(args.checkpoints)

    from tapnet.evaluation.comparison import compare, note, tables, title, write

    spec, found = episode_spec(args), candidates(args)
    with episode_progress() as start:
        result = compare(found, spec, bootstrap=not args.no_class_interval, progress=start)
    if args.json:
        print(json.dumps(result.as_dict()))
    else:
        print(title(result))
        for heading, rows in tables(result).items():
            print(f"\n{heading}")
            print_table([*rows[0]], [[*row.values()] for row in rows])
        print_prose(note(result))
    if args.out:
        print(*(f"Wrote {path}" for path in write(result, args.out)), sep="\n", file=sys.stderr)

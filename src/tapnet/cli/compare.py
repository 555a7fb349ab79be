"""`tapnet compare CHECKPOINT CHECKPOINT …`: the same episodes for all, and the paired differences."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from tapnet.cli.evaluate import evaluator, overlap_note, overlaps
from tapnet.cli.options import add_device, add_episodes, percent
from tapnet.wording import half_width


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", nargs="+", help="two or more checkpoints or run folders; the first is the base")
    add_episodes(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_device(parser, precision="float32")


def run(args: argparse.Namespace) -> None:
    from tapnet.evaluation import mean_and_ci95

    if len(args.checkpoints) < 2:
        raise ValueError(f"A comparison needs at least 2 checkpoints, got {len(args.checkpoints)}.")
    base, data = None, set()
    rows: list[dict[str, Any]] = []
    for checkpoint in args.checkpoints:
        judge = evaluator(checkpoint, args)
        data.add((judge.images.fingerprint, judge.images.turns, judge.images.apart))
        if len(data) > 1:
            raise ValueError("These checkpoints were trained on different data: give one for all by --dataset.")
        accuracies = judge.accuracies(args.way, args.shot, args.query, args.episodes, args.seed)
        base = accuracies if base is None else base
        mean, ci95 = mean_and_ci95(accuracies)
        difference, difference_ci95 = mean_and_ci95(accuracies - base)
        overlap = overlaps(judge.method, judge.images.name)
        row = {"checkpoint": checkpoint, "method": type(judge.method).__name__, "accuracy": mean, "ci95": ci95}
        rows.append(row | {"difference": difference, "difference_ci95": difference_ci95, "allow_overlap": overlap})
    if args.json:
        asked = {name: getattr(args, name) for name in ("way", "shot", "query", "episodes", "seed", "split")}
        print(json.dumps(asked | {"dataset": judge.images.name, "checkpoints": rows}))
    else:
        Console().print(_table(args, rows))


def _table(args: argparse.Namespace, rows: list[dict[str, Any]]) -> Table:
    note = overlap_note(any(row["allow_overlap"] for row in rows))
    asked = f"{args.way}-way {args.shot}-shot on {args.split} classes{note}"
    table = Table(title=f"{asked}, {args.episodes} identical episodes")
    for heading in ("checkpoint", "method", "accuracy", "over episodes", "difference", "paired interval"):
        table.add_column(heading)
    for row in rows:
        paired = f"{100 * row['difference']:+.2f}", half_width(row["difference_ci95"])
        cells = row["checkpoint"], row["method"], percent(row["accuracy"]), half_width(row["ci95"])
        table.add_row(*cells, *(("—", "") if row is rows[0] else paired))
    return table

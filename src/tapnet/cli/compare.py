"""`tapnet compare CHECKPOINT CHECKPOINT …`: the same episodes for all, and the paired differences."""

from __future__ import annotations

import argparse
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from tapnet.cli.evaluate import evaluator, overlaps
from tapnet.cli.options import add_device, add_episodes, episode_spec, percent
from tapnet.wording import difference, half_width, overlap_note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", nargs="+", help="two or more checkpoints or run folders; the first is the base")
    add_episodes(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_device(parser, precision="float32")


def run(args: argparse.Namespace) -> None:
    from tapnet.evaluation.intervals import mean_and_ci95

    if len(args.checkpoints) < 2:
        raise ValueError(f"A comparison needs at least 2 checkpoints, got {len(args.checkpoints)}.")
    base, data = None, set()
    rows: list[dict[str, Any]] = []
    for checkpoint in args.checkpoints:
        judge = evaluator(checkpoint, args)
        data.add((judge.images.fingerprint, judge.images.rotations, judge.images.one_rotation_per_class))
        if len(data) > 1:
            raise ValueError("These checkpoints were trained on different data: give one for all by --dataset.")
        accuracies = judge.accuracies(episode_spec(args))
        base = accuracies if base is None else base
        mean, ci95 = mean_and_ci95(accuracies)
        ahead, ahead_ci95 = mean_and_ci95(accuracies - base)
        overlap = overlaps(judge.method, judge.images.name)
        row = {"checkpoint": checkpoint, "method": type(judge.method).__name__, "accuracy": mean, "ci95": ci95}
        rows.append(row | {"difference": ahead, "difference_ci95": ahead_ci95, "allow_overlap": overlap})
    if args.json:
        asked = {name: getattr(args, name) for name in ("way", "shot", "query", "episodes", "seed", "split")}
        measured = {
            "dataset": judge.images.name,
            "classes": len(judge.images.class_names),
            "data_sha256": judge.images.fingerprint,
            "precision": judge.precision,
        }
        print(json.dumps(asked | measured | {"checkpoints": rows}))
    else:
        Console().print(_table(args, judge.images.name, rows))


def _table(args: argparse.Namespace, dataset: str, rows: list[dict[str, Any]]) -> Table:
    note = overlap_note(any(row["allow_overlap"] for row in rows))
    asked = f"{args.way}-way {args.shot}-shot on {dataset} ({args.split} classes{note})"
    table = Table(title=f"{asked}, {args.episodes} identical episodes", title_justify="left")
    for heading in ("checkpoint", "method"):
        table.add_column(heading, overflow="fold")
    for heading in ("accuracy", "over episodes", "difference", "paired interval"):
        table.add_column(heading, justify="right", max_width=len("difference"))  # headings break, names need the room
    for row in rows:
        paired = (None, None) if row is rows[0] else (row["difference"], row["difference_ci95"])
        cells = row["checkpoint"], row["method"], percent(row["accuracy"]), half_width(row["ci95"])
        table.add_row(*cells, difference(paired[0]), half_width(paired[1]))
    return table

"""`tapnet compare CHECKPOINT CHECKPOINT …`: the same episodes for all, and the paired differences."""

from __future__ import annotations

import argparse

from rich.console import Console
from rich.table import Table

from tapnet.cli.evaluate import evaluator
from tapnet.cli.options import add_device, add_episodes, interval, percent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", nargs="+", help="two or more checkpoints or run folders; the first is the base")
    add_episodes(parser)
    add_device(parser, precision="float32")


def run(args: argparse.Namespace) -> None:
    from tapnet.evaluation import mean_and_ci95

    if len(args.checkpoints) < 2:
        raise ValueError(f"A comparison needs at least 2 checkpoints, got {len(args.checkpoints)}.")
    table = Table(title=f"{args.way}-way {args.shot}-shot on {args.split} classes, {args.episodes} identical episodes")
    for heading in ("checkpoint", "method", "accuracy", "over episodes", "difference", "paired interval"):
        table.add_column(heading)
    base, data = None, set()
    for checkpoint in args.checkpoints:
        judge = evaluator(checkpoint, args)
        data.add((judge.images.fingerprint, judge.images.turns, judge.images.apart))
        if len(data) > 1:
            raise ValueError("These checkpoints were trained on different data: give one for all by --dataset.")
        accuracies = judge.accuracies(args.way, args.shot, args.query, args.episodes, args.seed)
        base = accuracies if base is None else base
        mean, ci95 = mean_and_ci95(accuracies)
        difference, difference_ci95 = mean_and_ci95(accuracies - base)
        paired = ("—", "") if accuracies is base else (f"{100 * difference:+.2f}", interval(difference_ci95))
        table.add_row(checkpoint, type(judge.method).__name__, percent(mean), interval(ci95), *paired)
    Console().print(table)

"""`tapnet runs`: the runs in a folder, their state and their results."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tapnet.cli.options import percent
from tapnet.cli.progress import ERRORS
from tapnet.cli.tables import print_table
from tapnet.errors import NotFoundError
from tapnet.text import half_width

if TYPE_CHECKING:
    from tapnet.training.run_summary import RunSummary


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = "Resume one that is not finished: tapnet train --resume RUN"
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), help="where to look (default: runs)")
    parser.add_argument("--json", action="store_true", help="print a JSON array")


def run(args: argparse.Namespace) -> None:
    from tapnet.training.run_summary import find_runs

    found = find_runs(args.folder)
    if args.json:
        print(json.dumps([asdict(each) | {"folder": str(each.folder)} for each in found]))
        return
    if not found:
        raise NotFoundError(f"There is no run in {args.folder}: start one with `tapnet train`, or name its folder.")
    print_runs(found)


def print_runs(found: Sequence[RunSummary]) -> None:
    """Print one row per run."""
    rows = []
    for each in found:
        tests = "\n".join(map(_result, each.evaluation))
        validation = _result(each.validation) if each.validation else "—"
        episodes = "—" if each.problem else f"{each.episode}/\n{each.episodes}"
        started = each.started[:16].replace("T", "\n")
        rows.append((str(each.folder), each.state, episodes, validation, tests or "—", started))
    print_table(("run", "state", "episodes", "validation", "test", "started"), rows)
    for each in found:
        if each.problem:
            ERRORS.print(each.problem)


def _result(result: dict[str, Any]) -> str:
    accuracy = f"{percent(result['accuracy'])} {half_width(result['ci95'])}"
    return f"{accuracy}\n{result['way']}-way {result['shot']}-shot"

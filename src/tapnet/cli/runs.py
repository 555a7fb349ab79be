"""`tapnet runs`: the runs in a folder, where they stand and what they reached."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tapnet.cli.options import percent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), help="where to look (default: runs)")
    parser.epilog = "Go on with one that is not finished: tapnet train --resume RUN"


def run(args: argparse.Namespace) -> None:
    from tapnet.training.run_folder import find_runs

    found = find_runs(args.folder)
    if not found:
        raise FileNotFoundError(f"There is no run in {args.folder}: start one with `tapnet train`, or name its folder.")
    table = Table()
    for heading in ("run", "state", "episodes", "validation", "test", "started"):
        table.add_column(heading, overflow="fold")
    for each in found:
        progress = f"{each.episode}/{each.episodes}"
        tests = "\n".join(map(_result, each.evaluation))
        validation = _result(each.validation) if each.validation else "—"
        table.add_row(
            str(each.folder), each.state, progress, validation, tests or "—", each.started[:16].replace("T", " ")
        )
    Console().print(table)


def _result(result: dict[str, Any]) -> str:
    accuracy = f"{percent(result['accuracy'])} ± {100 * result['ci95']:.2f}"
    return f"{accuracy}, {result['way']}-way {result['shot']}-shot"

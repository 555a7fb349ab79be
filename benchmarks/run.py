"""Everything that is measured, as ratios side by side in one run: a table, a plot, JSON that describes the machine.

python benchmarks/run.py                        what takes a few minutes at most
python benchmarks/run.py --full                 the slow ones, too
python benchmarks/run.py --only PART --pairs 3  one part, with so many pairs
python benchmarks/run.py --cpu-time             on a machine that is busy with other things
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import batch
import evaluation
import growth
import pairs
import photographs
import serving
import step
import torch
import training_loop
from pairs import Row
from rich.console import Console
from rich.table import Table

from tapnet.hardware import describe, keep_freed_memory, resolve_precision

Part = Callable[[int], list[Row]]  # from the number of pairs

QUICK: dict[str, Part] = {
    "evaluation": evaluation.rows,
    "head-conv4-28": partial(step.head_rows, "conv4", (1, 28, 28), rounds=4),  # short steps, a ratio near 1
    "loop-quickdraw": partial(training_loop.rows, "quickdraw"),
    "loop-mini-imagenet": partial(training_loop.rows, "mini-imagenet-conv4-cpu"),  # left out unless it is prepared
    "embedding": evaluation.embedding_rows,
    "methods": evaluation.method_rows,
    "startup": serving.startup_rows,
    "serving": serving.rows,
    "photographs": photographs.rows,
    "straightforward-conv4-28": partial(step.straightforward_rows, "conv4", (1, 28, 28), ""),
}
SLOW: dict[str, Part] = {
    "batch": batch.rows,
    "head-conv4-84": partial(step.head_rows, "conv4", (3, 84, 84)),
    "head-resnet12-28": partial(step.head_rows, "resnet12", (1, 28, 28)),
    "head-resnet12-84": partial(step.head_rows, "resnet12", (3, 84, 84)),
    "compile-conv4-84": partial(step.compiled_rows, "conv4", (3, 84, 84)),
    "tried-conv4-28": partial(step.tried_rows, "conv4", (1, 28, 28)),
    "straightforward-conv4-84": partial(step.straightforward_rows, "conv4", (3, 84, 84), "at least 2.5"),
    "straightforward-resnet12-28": partial(step.straightforward_rows, "resnet12", (1, 28, 28), ""),
    "straightforward-resnet12-84": partial(step.straightforward_rows, "resnet12", (3, 84, 84), "at least 3"),
}
GROWTH = "growth"
RESULTS = Path(__file__).parent / "results"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", nargs="+", choices=(*QUICK, *SLOW, GROWTH), metavar="PART", help="%(choices)s")
    parser.add_argument("--pairs", type=int, default=5, help="of every comparison, and rounds of the growth")
    parser.add_argument("--cpu-time", action="store_true", help="one thread, and its CPU seconds instead of the clock")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the JSON and the plot")
    args = parser.parse_args()
    keep_freed_memory()  # as training and embedding do
    if args.cpu_time:
        torch.set_num_threads(1)
        pairs.clock = pairs.cpu_seconds
    parts = QUICK | SLOW if args.full or args.only else QUICK
    chosen = args.only or (*parts, GROWTH)
    rows: list[Row] = []
    result: dict[str, Any] = {
        "hardware": machine(),
        "pairs": args.pairs,
        "cpu_time": args.cpu_time,
        "load_before": os.getloadavg(),
    }
    for name in chosen:
        print(f"{name} …", file=sys.stderr, flush=True)
        if name == GROWTH:
            result[GROWTH] = growth.growth(args.pairs)
            args.out.mkdir(parents=True, exist_ok=True)
            growth.plot(result[GROWTH], args.out / "growth.png")
            new = growth.rows(result[GROWTH])
        else:
            new = parts[name](args.pairs)
        for row in new:
            print(f"{row.name}: {row.shown} {row.note}", file=sys.stderr, flush=True)
        rows += new
    result |= {"load_after": os.getloadavg(), "rows": [asdict(row) for row in rows]}
    path = args.out / ("part.json" if args.only else "full.json" if args.full else "bench.json")
    args.out.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=2) + "\n")
    Console(width=150).print(_table(rows, result["hardware"]), f"{path}", sep="\n", highlight=False)


def machine() -> dict[str, Any]:
    """The hardware and versions, with the instructions that PyTorch finds on the CPU."""
    cpu = torch.device("cpu")
    known: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    features = sorted(name for name, value in known.items() if value is True)
    return describe(cpu, resolve_precision("auto", cpu)) | {"features": features}


def _table(rows: list[Row], hardware: dict[str, Any]) -> Table:
    name, cores, threads, version = (hardware[key] for key in ("device_name", "cores", "threads", "torch"))
    table = Table(title=f"{name}, {cores} cores, {threads} threads, PyTorch {version}")
    for heading in ("what", "ratio or value", "asked", ""):
        table.add_column(heading)
    for row in rows:
        table.add_row(row.name, row.shown, row.target, row.note)
    return table


if __name__ == "__main__":
    main()

"""Everything that is measured, as ratios side by side in one run: a table, and JSON with the machine's description.

python benchmarks/run.py          what takes a few minutes at most
python benchmarks/run.py --full   the slow ones, too, and how costs grow, with a picture
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import embedding
import evaluation
import growth
import startup
import straightforward
import torch
import training_step
from pairs import Row, compared
from rich.console import Console
from rich.table import Table

from tapnet.hardware import describe, resolve_precision


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder of the JSON and picture")
    args = parser.parse_args()
    precision = resolve_precision("auto", torch.device("cpu"))
    table = Table(title=f"{describe(torch.device('cpu'), precision)['device_name']}, {torch.get_num_threads()} threads")
    for heading in ("what", "ratio", "asked", ""):
        table.add_column(heading)
    measured = []
    for row in rows(args.full, precision):
        measured.append(row)
        print(f"{row.name}: {row.ratio}", file=sys.stderr, flush=True)
        table.add_row(row.name, "—" if row.ratio is None else f"{row.ratio:.3g}", row.target, row.note)
    result = {"hardware": describe(torch.device("cpu"), precision), "load": os.getloadavg()}
    result["rows"] = [asdict(row) for row in measured]
    if args.full:
        result["growth"] = growth.growth()
        growth.plot(result["growth"], args.out / "growth.png")
    args.out.mkdir(parents=True, exist_ok=True)
    name = args.out / ("full.json" if args.full else "bench.json")
    name.write_text(json.dumps(result, indent=2) + "\n")
    Console(width=140).print(table, _growth_table(result.get("growth", {})), f"{name}", sep="\n", highlight=False)


def rows(full: bool, precision: str) -> Iterator[Row]:
    yield from evaluation.rows()
    yield _head("conv4", (1, 28, 28), precision, 30)
    yield from embedding.rows()
    yield from startup.rows()
    yield from straightforward.rows("conv4", (1, 28, 28), "")
    if full:
        yield _head("conv4", (3, 84, 84), precision, 30)
        yield _head("resnet12", (1, 28, 28), precision, 30)
        yield _head("resnet12", (3, 84, 84), precision, 30)
        yield from straightforward.rows("conv4", (3, 84, 84), "at least 2.5")
        yield from straightforward.rows("resnet12", (3, 84, 84), "at least 3")


def _head(backbone: str, shape: tuple[int, int, int], precision: str, pairs: int) -> Row:
    bare, whole = training_step.steps(shape, backbone, precision)
    b, a, ratio = compared(lambda: whole().backward(), lambda: bare().backward(), pairs)
    name = f"step: TapNet / bare backbone, {backbone} {'×'.join(map(str, shape))}, {precision}"
    return Row(name, ratio, "at most 1.03", b, a, f"{1000 * b:.0f} ms against {1000 * a:.0f} ms")


def _growth_table(table: dict[str, list[tuple[int, float]]]) -> Table | str:
    if not table:
        return ""
    result = Table(title="µs an episode; 5-way 5-shot 15-query, 512 dimensions but for what is named")
    for heading in ("axis", "values", "µs"):
        result.add_column(heading)
    for axis, points in table.items():
        result.add_row(axis, " ".join(str(v) for v, _ in points), " ".join(f"{1e6 * s:.0f}" for _, s in points))
    return result


if __name__ == "__main__":
    main()

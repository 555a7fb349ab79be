"""RESULTS.md: every number that was really obtained, made from the files in `results/`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tapnet.analysis.tables import TABLES, Filled, filled_table
from tapnet.results import read_ablations, read_results

_HEAD = """# Results

What was really run. This page is made from the files in `results/` by `make results`; a test fails when they disagree.
*Over episodes* is the usual 95% interval, for these test classes; *over classes* is the one for other classes and
images of the same kind ([how](docs/method.md)). Neither knows about another training seed. What was not run says so,
with its command.
"""


def report(folder: Path) -> str:
    """The page as Markdown."""
    results, ablations = read_results(folder), read_ablations(folder)
    parts = [_HEAD, "## Evaluations", _evaluations(results), _commands(results)]
    parts += ["## Ablations", *map(_ablation, ablations)]
    parts += ["## The paper's tables", *(_table(filled_table(name, [*results, *ablations])) for name in TABLES)]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _evaluations(results: list[dict[str, Any]]) -> str:
    headings = ("recipe", "test classes", "task", "accuracy", "over episodes", "over classes", "training episodes")
    rows = []
    for result in results:
        task = result["evaluation"]
        rows.append(
            (
                f"`{result['recipe']['name']}`",
                f"{task['dataset']}, {task['classes']} {task['split']} classes",
                f"{task['way']}-way {task['shot']}-shot, {task['episodes']:,} episodes of {task['query']} queries",
                f"{100 * task['accuracy']:.2f}",
                _half_width(task["ci95"]),
                _half_width(task["ci95_bootstrap"]),
                f"{result['trained']['episodes']:,} of {result['recipe']['training']['episodes']:,}",
            )
        )
    return _markdown(headings, rows)


def _half_width(value: float | None) -> str:
    return "—" if value is None else f"± {100 * value:.2f}"


def _commands(results: list[dict[str, Any]]) -> str:
    hardware = sorted({str(result["trained"]["hardware"].get("device_name")) for result in results})
    lines = [
        f"Trained on {', '.join(hardware)}. Made by:",
        "",
        "```",
        *(result["command"] for result in results),
        "```",
    ]
    return "\n".join(lines) if results else "None yet."


def _ablation(ablation: dict[str, Any]) -> str:
    task, recipe = ablation["task"], ablation["recipe"]
    title = f"### {ablation['name']}: `{recipe['name']}`, {task['way']}-way {task['shot']}-shot"
    banded = ablation["rows"][0]["lowest"] is not None
    headings = ("variant", "accuracy", "over episodes", "difference", "paired interval", "over rotations")
    rows = []
    for row in _few(ablation["rows"]):
        difference = "—" if row["difference"] is None else f"{100 * row['difference']:+.2f}"
        band = f"{100 * row['lowest']:.2f} to {100 * row['highest']:.2f}" if banded else ""
        rows.append(
            (
                row["variant"],
                f"{100 * row['accuracy']:.2f}",
                _half_width(row["ci95"]),
                difference,
                _half_width(row["difference_ci95"]),
                band,
            )
        )
    table = _markdown(headings, rows) if banded else _markdown(headings[:-1], [row[:-1] for row in rows])
    length = ablation["rows"][0]["training_episodes"]
    trained = f"Each variant was trained for {length:,} episodes. " if length else ""
    where = f"{task['dataset']} ({task['split']} classes), {task['episodes']:,} episodes."
    return f"{title}\n\n{trained}{where}\n\n{table}\n\n```\n{ablation['command']}\n```"


def _few(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows, or of many the 1st, 2nd, 5th, 10th and so on, and the last."""
    steps = {digit * 10**power for power in range(6) for digit in (1, 2, 5)} | {len(rows)}
    return rows if len(rows) <= 30 else [row for number, row in enumerate(rows, 1) if number in steps]


def _table(filled: Filled) -> str:
    lines = [f"### {filled.title}", "", _markdown(filled.headings, filled.rows)]
    if filled.runs:
        lines += ["", *(f"- {line}" for line in filled.runs)]
    if filled.commands:
        lines += ["", "Not run:", "", "```", *filled.commands, "```"]
    return "\n".join(lines)


def _markdown(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [headings, tuple("---" for _ in headings), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

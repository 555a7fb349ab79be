"""RESULTS.md: the paper's tables and ablations with our results, generated from the files in `results/`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tapnet.paper.ablations.rows import subsample_rows, task_words
from tapnet.paper.cells import CELL_HEADINGS, cell_rows
from tapnet.paper.results import DROPPED, read_ablations, read_results
from tapnet.paper.rivals import RIVAL_TABLES
from tapnet.paper.tables import TABLES, FilledTable, filled_table, saved_after
from tapnet.text import class_half_width, difference, half_width, markdown_table

_HEAD = """# Results

Every cell of the paper that is TapNet's, and what was reached here, in percent, by the paper's protocol; ± is the 95%
interval over episodes, and several training seeds have their mean and range. *Episodes* and *hours* are those of
training, including the networks it was initialized or distilled from (a classifier's steps count as episodes); hours
that were not recorded are a dash. Where the paper's recipe was not run, ours is the recipe that was best on validation
classes (rotated where the test classes are; among those evaluated on them), and a network other than the paper's is
named; networks that see four views of each image have rows of their own (the ablation `views` below has four views of
others), and so has that network when, as in the paper, the validation classes train, too, for a length fixed
beforehand. The recipe (`recipes/DATASET/NAME.yaml`) says where a recipe departs from the paper.
"""

_NOTES = """## How to read the rest

This page is made from the files in `results/` by `make results`; a test fails when they disagree. *Over episodes* is
the usual 95% interval, for these test classes; *over classes* is the one for other classes and images of the same kind
([how](docs/method.md)). Neither covers another training seed. What was not run says so, with its command. A recipe with
a link has its network here: `tapnet evaluate results/DATASET/NAME.safetensors` with the options of a row repeats
that row. `omniglot-cpu-four-rotations` is the bundled network `characters`, there in half precision; its rows of 1692
rotated classes were measured with that file. `omniglot-cpu-branches` is kept in half precision, too; its rows of 1692
classes were measured before the rounding, and the file repeats them. Where *over classes* is *withdrawn*, the
interval counted the rotations of a character as classes of their own, which made it too narrow, and the network was not
kept to measure it again; where it is *left out*, it was not computed (`--no-class-interval`). A row of a table with the
name of a recipe is ours, for smaller machines.
"""


_RIVALS = """One harness, the same test classes and, for a task and a number of episodes, the same episodes for every
method; one training run each. The row under a published accuracy is ours, from a run of minutes to two hours on a CPU.
On Omniglot TapNet and Prototypical Networks have a wider Conv4 than the others; [docs/rivals.md](docs/rivals.md) has
that and the paired differences.
"""


def report(folder: Path) -> str:
    """Return the page as Markdown."""
    results, ablations = read_results(folder), read_ablations(folder)
    parts = [_HEAD, markdown_table(CELL_HEADINGS, cell_rows(results)), _NOTES]
    parts += ["## TapNet and its rivals", _RIVALS, *(_table(filled_table(name, results)) for name in RIVAL_TABLES)]
    papers = (name for name in TABLES if name not in RIVAL_TABLES)
    parts += ["## The paper's tables", *(_table(filled_table(name, [*results, *ablations])) for name in papers)]
    if ablations:
        parts += ["## Ablations", *map(_ablation, ablations)]
    if results:
        parts += ["## Evaluations", _evaluations(results, folder), _commands(results)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _evaluations(results: list[dict[str, Any]], folder: Path) -> str:
    headings = ("recipe", "classes", "task", "accuracy", "over episodes", "over classes", "kept after")
    rows = []
    for result in results:
        task = result["evaluation"]
        rows.append(
            (
                _linked(result["recipe"], folder),
                f"{task['dataset']}, {task['classes']} {task['split']} classes",
                f"{task['way']}-way {task['shot']}-shot, {task['episodes']:,} episodes of {task['query']} queries",
                f"{100 * task['accuracy']:.2f}",
                half_width(task["ci95"]),
                _over_classes(task),
                saved_after(result),
            )
        )
    return markdown_table(headings, rows)


def _over_classes(task: dict[str, Any]) -> str:
    """Return the half-width of the interval over classes, or a word of the page's notes for why there is none."""
    value, at_most = task["ci95_bootstrap"], task.get("ci95_bootstrap_at_most")
    if value is None and at_most is None:
        return "withdrawn" if task.get("interval") == DROPPED else "left out"
    return "not resolvable" if value == task["ci95"] else class_half_width(value, at_most)


def _linked(recipe: dict[str, Any], folder: Path) -> str:
    """Return the name of a recipe, as a link to its network if that is kept; networks of other seeds than 0 are not."""
    name = recipe["name"]
    path = f"{recipe['data']['name']}/{name}.safetensors"
    if recipe["seed"]:
        return f"`{name}`, seed {recipe['seed']}"
    return f"[`{name}`](results/{path})" if (folder / path).is_file() else f"`{name}`"


def _commands(results: list[dict[str, Any]]) -> str:
    hardware = sorted({result["trained"]["hardware"].get("device_name", "unrecorded hardware") for result in results})
    commands = dict.fromkeys(result["command"] for result in results)
    return "\n".join([f"Trained on {' or '.join(hardware)}. Made by:", "", "```", *commands, "```"])


def _ablation(ablation: dict[str, Any]) -> str:
    rows, task = ablation["rows"], ablation["task"]
    banded, length = rows[0]["lowest"] is not None, rows[0]["training_episodes"]
    headings: tuple[str, ...] = ("variant", "accuracy", "over episodes", "difference", "paired interval")
    first = banded and rows[0].get("references_first") is not None
    headings += (("references first",) if first else ()) + (("over rotations",) if banded else ())
    cells = [
        (
            row["variant"],
            f"{100 * row['accuracy']:.2f}",
            half_width(row["ci95"]),
            difference(row["difference"]),
            half_width(row["difference_ci95"]),
            *((f"{100 * row['references_first']:.2f}",) if first else ()),
            *((f"{100 * row['lowest']:.2f} to {100 * row['highest']:.2f}",) if banded else ()),
        )
        for row in subsample_rows(rows, max(rows, key=lambda row: row["accuracy"]))
    ]
    trained = f"Each variant was trained once, for {length:,} episodes; another seed may differ. " if length else ""
    return "\n\n".join(
        (
            f"### {ablation['name']}: `{ablation['recipe']['name']}`, {task_words(task)}",
            f"{trained}{task['episodes']:,} test episodes.",
            markdown_table(headings, cells),
            f"```\n{ablation['command']}\n```",
        )
    )


def _table(filled: FilledTable) -> str:
    lines = [f"### {filled.title}", "", markdown_table(filled.headings, filled.rows)]
    for remarks in (filled.runs, filled.notes):
        if remarks:
            lines += ["", *(f"- {line}" for line in remarks)]
    if filled.commands:
        lines += ["", "Not run:", "", "```", *filled.commands, "```"]
    return "\n".join(lines)

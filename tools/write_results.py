"""Make RESULTS.md and results/README.md from the files in results/: python tools/write_results.py."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from tapnet.checkpoint import lineage_from
from tapnet.paper.ablations import row_table
from tapnet.paper.published import CELLS, RIVALS, Cell
from tapnet.paper.results import Result, read_ablations, read_results
from tapnet.paper.tables import (
    TABLES,
    Cells,
    FilledTable,
    Results,
    command,
    filled_table,
    matching_results,
    saved_after,
    summary,
    task_words,
)
from tapnet.text import class_half_width, difference, half_width, markdown_table

ROOT = Path(__file__).resolve().parents[1]
HEADINGS = (
    "classes",
    "paper's network",
    "task",
    "paper",
    "ours",
    "over classes",
    "difference",
    "episodes",
    "hours",
    "recipe",
)

_HEAD = """# Results

Every TapNet result in the paper, and what was reached here, in percent, by the paper's protocol. ± is the 95% interval
over episodes, for these test classes; *over classes* is the one for other classes and images of the same kind
([how](docs/method.md)); neither covers another training seed, and several seeds have their mean and range. *Episodes*
and *hours* are those of training, including the networks that it was initialized or distilled from (a classifier's
steps count as episodes); — means not recorded or not computed. The recipe (`recipes/DATASET/NAME.yaml`) says where it
departs from the paper. [results/README.md](results/README.md) has the other tables of the paper, the ablations and
every evaluation with its command.
"""

_NOTES = """What to know before comparing:

- Where the paper's recipe was not run, ours is the recipe that was best on validation classes, and rows below it are
  other forms of it. Several of these recipes were changed after their test classes had been scored, so that the test
  classes are no longer fresh; the recipe itself, its checkpoint and its options were chosen on validation classes.
- The paper says that the test is done with the remaining characters and leaves open whether their rotations count as
  classes. Both protocols are shown, the 423 characters as drawn first: they are harder.
- `omniglot-cpu-branches` is an ensemble: four networks were trained apart, joined with their mirror images, and trained
  together for 40 more episodes. `omniglot-cpu-wide-distilled` is the best single network that sees an image once.
- On Omniglot TapNet's gradient passes through the projection here, which helps short training. The authors' code has no
  such gradient: `omniglot-60way` is that form, `omniglot-60way-gradient` the same recipe with the gradient.
- `mini-imagenet-5shot-conv4-cpu-distilled` learns from three teachers, which would help other methods as well; a
  distilled Prototypical Network was not run. `mini-imagenet-1shot-conv4-cpu-scaled` is one run, which starts from the
  best of the three 5-shot seeds.
- Random or farthest references, original ones in the projection and modified ones in the classification cost 0.6 to 1.8
  points in the paper. With our trained networks on miniImageNet they change the accuracy by 0.05 points or less.
"""

_RIVALS = """## TapNet and its rivals

One harness, the same test classes and, for a task and a number of episodes, the same episodes for every method; one
training run each unless several seeds are given. The row under a published accuracy is ours, from a run of minutes to
two hours on a CPU. On Omniglot TapNet and Prototypical Networks have a wider Conv4 than the others;
[docs/rivals.md](docs/rivals.md) has that and says how to compare runs yourself.
"""

_DETAILS = """# Recorded results

Made with [RESULTS.md](../RESULTS.md) from the files in this folder by `make results`; a test fails when they disagree.
`DATASET/RECIPE.json` has every run of a recipe with its evaluations and ablations, written by `tapnet evaluate --record
results` and `tapnet ablate … --record results`. A recipe with a link has its network here: `tapnet evaluate
results/DATASET/NAME.safetensors` with the options of a row repeats that row. `omniglot-cpu-four-rotations` is the
bundled network `characters`, there in half precision; its rows of 1692 rotated classes were measured with that file.
`omniglot-cpu-branches` is kept in half precision, too; its rows of 1692 classes were measured before the rounding, and
the file repeats them. Measurements of [own-images](own-images) are in
[docs/own-images-measured.md](../docs/own-images-measured.md).

*Over episodes* is the usual 95% interval, for these test classes; *over classes* is the one for other classes and
images of the same kind; — means not computed or not resolvable. Neither covers another training seed. A row of a table
with the name of a recipe is ours, for smaller machines.
"""


def report(folder: Path) -> str:
    """Return RESULTS.md: the paper's cells that are TapNet's, the rivals, and the commands of what was not run."""
    results = read_results(folder)
    missing: dict[str, list[Cell]] = {}
    for cell in CELLS:
        if not matching_results(cell.recipe, cell.task, results):
            missing.setdefault(cell.recipe, []).append(cell)
    commands = [command(recipe, [cell.task for cell in cells]) for recipe, cells in missing.items()]
    parts = [_HEAD, markdown_table(HEADINGS, cell_rows(results)), _NOTES]
    parts += [_RIVALS, *(_table(filled_table(name, results), runs=False) for name in RIVALS)]
    if commands:
        parts += ["## Not run", "The paper's own recipes; those with ResNet-12 need a GPU.", _code(commands)]
    return _page(parts)


def details(folder: Path) -> str:
    """Return results/README.md: the paper's tables, the ablations, and every evaluation with its command."""
    results, ablations = read_results(folder), read_ablations(folder)
    tables = {name: filled_table(name, [*results, *ablations]) for name in TABLES}
    papers = (_table(table) for name, table in tables.items() if name not in RIVALS)
    parts = [_DETAILS, "## The paper's tables", *papers, "## Networks of the rivals"]
    parts += [_list(tables[name].runs) for name in RIVALS]
    parts += ["## Ablations", *map(_ablation, ablations)]
    parts += ["## Evaluations", _evaluations(results, folder), _commands(results)]
    return _page(parts)


def _page(parts: Sequence[str]) -> str:
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def cell_rows(results: Results) -> list[Cells]:
    """Return one row per cell and recipe of ours, with `not run` if there is no result of any."""
    rows: list[Cells] = []
    for cell in CELLS:
        kinds = {cell.recipe: "", **cell.ours}
        measured = {recipe: matching_results(recipe, cell.task, results) for recipe in kinds}
        task = f"{cell.task.way}-way {cell.task.shot}-shot"
        paper = cell.name, cell.network, task, cell.published
        shown = [_cell_row(cell, part, kinds[recipe]) for recipe, part in measured.items() if part]
        rows += [(*paper, *row) for row in shown or [("not run", "—", "—", "—", "—", f"`{cell.recipe}`")]]
    return rows


def _cell_row(cell: Cell, ours: Results, kind: str) -> Cells:
    first, published = ours[0], float(cell.published.split()[0]) / 100
    networks = lineage_from(first["trained"]["lineage"]).networks()
    episodes = first["trained"]["episodes"] + sum(network.episodes for network in networks)
    seconds = [first["trained"].get("seconds"), *(network.seconds for network in networks)]
    return (
        summary(ours),
        _over_classes(first["evaluation"]),
        difference(fmean(result["evaluation"]["accuracy"] for result in ours) - published),
        f"{episodes:,}",
        f"{sum(filter(None, seconds)) / 3600:.1f}" if all(seconds) else "—",
        f"`{first['recipe']['name']}`" + (f": {kind}" if kind else ""),
    )


def _over_classes(task: dict[str, Any]) -> str:
    return class_half_width(task["ci95_bootstrap"], task.get("ci95_bootstrap_at_most"))


def _evaluations(results: Results, folder: Path) -> str:
    headings = ("recipe", "classes", "task", "accuracy", "over episodes", "over classes", "kept after")
    rows = []
    for result in results:
        task = result["evaluation"]
        classes = f"{task['dataset']}, {task['classes']} {task['split']} classes"
        episodes = f"{task['way']}-way {task['shot']}-shot, {task['episodes']:,} episodes of {task['query']} queries"
        intervals = half_width(task["ci95"]), _over_classes(task)
        accuracy = f"{100 * task['accuracy']:.2f}"
        rows.append((_linked(result["recipe"], folder), classes, episodes, accuracy, *intervals, saved_after(result)))
    return markdown_table(headings, rows)


def _linked(recipe: dict[str, Any], folder: Path) -> str:
    """Return the name of a recipe, as a link to its network if that is kept; networks of other seeds than 0 are not."""
    name = recipe["name"]
    path = f"{recipe['data']['name']}/{name}.safetensors"
    if recipe["seed"]:
        return f"`{name}`, seed {recipe['seed']}"
    return f"[`{name}`]({path})" if (folder / path).is_file() else f"`{name}`"


def _commands(results: Results) -> str:
    hardware = sorted({result["trained"]["hardware"].get("device_name", "unrecorded hardware") for result in results})
    commands = list(dict.fromkeys(result["command"] for result in results))
    return f"Trained on {' or '.join(hardware)}. Made by:\n\n{_code(commands)}"


def _ablation(ablation: Result) -> str:
    task, length = ablation["task"], ablation["rows"][0]["training_episodes"]
    trained = f"Each variant was trained once, for {length:,} episodes; another seed may differ. " if length else ""
    parts = (
        f"### {ablation['name']}: `{ablation['recipe']['name']}`, {task_words(task)}",
        f"{trained}{task['episodes']:,} test episodes.",
        markdown_table(*row_table(ablation["rows"])),
        _code([ablation["command"]]),
    )
    return "\n\n".join(parts)


def _table(filled: FilledTable, runs: bool = True) -> str:
    parts = [f"### {filled.title}", markdown_table(filled.headings, filled.rows)]
    parts += [_list(lines) for lines in ((filled.runs if runs else []), filled.notes) if lines]
    parts += ["Not run:", _code(filled.commands)] if filled.commands else []
    return "\n\n".join(parts)


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _code(lines: Sequence[str]) -> str:
    return "\n".join(["```", *lines, "```"])


if __name__ == "__main__":
    (ROOT / "RESULTS.md").write_text(report(ROOT / "results"), encoding="utf-8")
    (ROOT / "results" / "README.md").write_text(details(ROOT / "results"), encoding="utf-8")

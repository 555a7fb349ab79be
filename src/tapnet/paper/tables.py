"""The tables of the paper and of its rivals, with our recorded results beside or below the published numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tapnet.backbones import make_backbone
from tapnet.checkpoint import lineage_from
from tapnet.evaluation.candidates import without_seed
from tapnet.evaluation.comparison import extra_parameters
from tapnet.methods import METHODS, Method
from tapnet.paper.published import (
    ABLATION_TABLES,
    ACCURACIES,
    HYPERPARAMETERS,
    PARAMETERS,
    RIVALS,
    AccuracyTable,
    Modules,
    ParameterCount,
    PublishedRow,
    PublishedTask,
)
from tapnet.paper.results import Result
from tapnet.recipe import load_recipe, recipe_from
from tapnet.text import overlap_note, with_interval

Results = list[Result]
Cells = tuple[str, ...]

COSTS = ("extra parameters", "episodes", "minutes", "transductive")
IMAGE_SHAPE = (3, 84, 84)  # miniImageNet's
_PAPER_RECIPE, _TRAINED = "mini-imagenet-5shot", ("initial-norm", "episode-composition")  # the supplement's ablations


@dataclass(frozen=True)
class FilledTable:
    """A table ready to print: headings, rows of text, what was run, the commands for what was not, and notes."""

    title: str
    headings: Cells
    rows: Sequence[Cells]
    runs: list[str] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def filled_table(name: str, results: Results) -> FilledTable:
    """Return a published table with our results, or `not run`, beside or below those of the paper.

    `results` are evaluations and ablations, as `tapnet.paper.results` reads them.
    """
    return TABLES[name](results)


def _accuracies(table: AccuracyTable, results: Results) -> FilledTable:
    rows: list[Cells] = []
    runs: Results = []
    missing: dict[str, list[PublishedTask]] = {}
    costs = COSTS if table.image_shape else ()
    own_rows = {}
    for own in table.own_recipes:
        dataset = load_recipe(own).data.name
        own_rows[own] = PublishedRow(recipes=tuple(own if task.dataset == dataset else None for task in table.columns))
    for method, row in (table.rows | own_rows).items():
        if row.published:
            rows.append((method, *row.published, *("",) * len(costs)))
        if not row.recipes:
            continue
        cells: list[str] = []
        measured: list[Results] = []
        for recipe, task in zip(row.recipes, table.columns, strict=True):
            part = matching_results(recipe, task, results, table.image_shape is not None) if recipe else []
            cells.append(summary(part) if recipe else "—")
            measured.append(part)
            if recipe and not part:
                missing.setdefault(recipe, []).append(task)
        rows.append((f"{method}, ours", *cells, *(_costs(table, row, measured) if costs else ())))
        runs += [result for part in measured for result in part]
    headings = ("method", *(task.heading for task in table.columns), *costs)
    commands = [command(recipe, tasks) for recipe, tasks in missing.items()]
    return FilledTable(table.title, headings, rows, _origins(runs), commands, list(table.notes))


def matching_results(recipe: str, task: PublishedTask, results: Results, by_name: bool = False) -> Results:
    """Return the results of a recipe on test classes of this task, by the paper's protocol, one per seed.

    `by_name`: also those of earlier forms of the recipe, and on the largest number of episodes that there is.
    """
    wanted = {"split": "test", **{key: getattr(task, key) for key in ("dataset", "classes", "way", "shot", "query")}}
    measured = [result for result in results if wanted.items() <= result.get("evaluation", {}).items()]
    if by_name:
        named = [result for result in measured if result["recipe"]["name"] == recipe]
        most = max((result["evaluation"]["episodes"] for result in named), default=0)
        return [result for result in named if result["evaluation"]["episodes"] == most]
    experiment = _experiment(load_recipe(recipe).as_dict())
    exact = [result for result in measured if result["evaluation"]["episodes"] == task.episodes]
    return [result for result in exact if _experiment(result["recipe"]) == experiment]


def _experiment(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe without what does not change the experiment: its seed, and the paths of data and weights.

    The number of training classes is left out too: training fills it in.
    """
    options = {name: value for name, value in recipe["method"]["options"].items() if name != "num_classes"}
    return without_seed(recipe) | {"name": recipe["name"], "method": recipe["method"] | {"options": options}}


def summary(results: Results) -> str:
    """Return the accuracy of a network with its interval, or the mean and range over seeds of training."""
    if not results:
        return "not run"
    accuracies = sorted(100 * result["evaluation"]["accuracy"] for result in results)
    if len(results) == 1:
        return with_interval(results[0]["evaluation"]["accuracy"], results[0]["evaluation"]["ci95"])
    mean = sum(accuracies) / len(accuracies)
    return f"{mean:.2f} ({len(results)} seeds: {accuracies[0]:.2f} to {accuracies[-1]:.2f})"


def _costs(table: AccuracyTable, row: PublishedRow, measured: Sequence[Results]) -> Cells:
    """Return the cells of `COSTS`, of our runs side by side; without any, the parameters of the recipe alone."""
    assert table.image_shape is not None
    runs = list({part[0]["recipe"]["name"]: part[0] for part in measured if part}.values())
    recipes = [recipe_from(run["recipe"], "its recipe") for run in runs]
    recipes = recipes or [load_recipe(next(recipe for recipe in row.recipes if recipe))]
    seconds = [run["trained"].get("seconds") for run in runs]
    columns: list[Iterable[str]] = [
        dict.fromkeys(f"{extra_parameters(recipe.build_on_meta(table.image_shape)):,}" for recipe in recipes),
        [f"{run['trained']['episodes']:,}" for run in runs],
        ["—" if value is None else f"{value / 60:.0f}" for value in seconds],
        dict.fromkeys("yes" if run["evaluation"].get("transductive") else "no" for run in runs),
    ]
    return tuple(" / ".join(values) or "—" for values in columns)


def _origins(results: Results) -> list[str]:
    """Return a line for each network: where its numbers come from."""
    tasks: dict[str, list[str]] = {}
    for result in results:
        recipe, task, trained = result["recipe"], result["evaluation"], result["trained"]
        device = trained["hardware"].get("device_name", "hardware unknown")
        what = f"{recipe['name']}: {recipe['method']['name']} with {recipe['backbone']['name']}"
        changed = _experiment(recipe) != _experiment(load_recipe(recipe["name"]).as_dict())
        form = " by an earlier form of the recipe" if changed else ""
        network = f"{what}{form}, seed {recipe['seed']}, kept after {saved_after(result)}, {device}"
        tasks.setdefault(network, []).append(f"{task['way']}-way {task['shot']}-shot")
    return [f"{network}; {' and '.join(dict.fromkeys(of_network))}" for network, of_network in tasks.items()]


def saved_after(result: Result) -> str:
    """Return after how many of how many training episodes the network was saved, with notes on its run."""
    trained, episodes = result["trained"], result["recipe"]["training"]["episodes"]
    unfinished = trained.get("state", "finished") not in ("finished", "unknown")
    notes = [*(["the run is not finished"] if unfinished else []), *lineage_from(trained["lineage"]).parents()]
    return f"{trained['episodes']:,} of {episodes:,} training episodes" + (f" ({'; '.join(notes)})" if notes else "")


def command(recipe: str, tasks: Sequence[PublishedTask]) -> str:
    """Return the command that trains a recipe and records its accuracy on these tasks, one evaluation for all shots."""
    loaded = load_recipe(recipe)
    shots: dict[str, list[str]] = {}  # by the other options
    for task in tasks:
        rotations = loaded.data.options.get("rotations", 1)
        own = rotations.get("test", 1) if isinstance(rotations, dict) else rotations
        wanted = 4 if task.dataset == "omniglot" and task.classes == 4 * 423 else 1
        options = f" --rotations {wanted}" if task.dataset == "omniglot" and own != wanted else ""
        options += f" --way {task.way} --shot {{}} --query {task.query} --episodes {task.episodes} --record results"
        shots.setdefault(options, []).append(str(task.shot))
    evaluations = [f"tapnet evaluate runs/{recipe}{options.format(','.join(of))}" for options, of in shots.items()]
    training = loaded.training
    others = [f"initialized from {', '.join(training.init_from)}"] if training.init_from else []
    others += [f"distilled from {', '.join(training.teachers)}"] if training.teachers else []
    return " && ".join([f"tapnet train {recipe}", *evaluations]) + (f"  # {', '.join(others)}" if others else "")


_SETTINGS = ("N_c", "N_q", "rate", "step", "by", "l2", "dropout")


def _hyperparameters(_: Results) -> FilledTable:
    """Return the published settings, and where our recipe differs."""
    rows: list[Cells] = []
    for name, published in HYPERPARAMETERS.items():
        recipe = load_recipe(name)
        training = recipe.training
        own = (
            str(training.way),
            str(training.query),
            _power(training.learning_rate),
            str(training.decay_every),
            f"{training.decay_ratio:g}",
            _power(training.weight_decay) if training.weight_decay else "-",
            " ".join(f"{rate:.1f}".lstrip("0") for rate in recipe.backbone.options["dropout"]),
        )
        other = [f"{name} {ours}" for name, paper, ours in zip(_SETTINGS, published, own, strict=True) if ours != paper]
        rows.append((name, *published, ", ".join(other) or "same"))
    return FilledTable("Supplement, Table 2: settings of meta-training", ("recipe", *_SETTINGS, "ours"), rows)


def _power(value: float) -> str:
    """Return 0.001 as 1e-3."""
    return f"{value:.0e}".replace("e-0", "e-")


def _parameters(_: Results) -> FilledTable:
    """Return the published numbers of parameters, ours counted alike, and all that a method adds to its backbone."""
    rows: list[Cells] = []
    for name, row in PARAMETERS.items():
        rows += [(name, *row.published, ""), (f"{name}, ours", *count_parameters(row))]
    title = "Supplement, Table 5: number of parameters, images of 84×84 (ours: weights without biases)"
    headings = ("method", "feature extractor", "further layers", "further parts", "all besides backbone")
    notes = [f"{name}: {row.note}." for name, row in PARAMETERS.items() if row.note]
    return FilledTable(title, headings, rows, notes=notes)


def count_parameters(row: ParameterCount) -> tuple[str, str, str, str]:
    """Return our numbers for the columns of a row, and the number of all parameters besides those of the backbone.

    Counted as published: the weights of convolutions, of linear layers and the references, not biases and batch
    normalization. The last number has everything.
    """
    with torch.device("meta"):
        network: Method = METHODS[row.method](make_backbone(row.backbone, IMAGE_SHAPE), **row.options)
    convolutions = sum(weight.numel() for weight in network.backbone.parameters() if weight.dim() == 4)
    added = {name: weight for name, weight in network.named_parameters() if not name.startswith("backbone.")}
    layers, parts = (
        " + ".join(f"{_count_weights(added, modules):,}" for modules in groups) or "-"
        for groups in (row.layers, row.parts)
    )
    return f"{convolutions:,}", layers, parts, f"{sum(weight.numel() for weight in added.values()):,}"


def _count_weights(parameters: Mapping[str, Tensor], modules: Modules) -> int:
    inside = tuple(f"{module}." for module in modules)
    return sum(
        weight.numel() for name, weight in parameters.items() if f"{name}.".startswith(inside) and weight.dim() > 1
    )


def task_words(task: dict[str, Any]) -> str:
    """Return a recorded task in a few words, without the way if rows differ in it."""
    way = f"{task['way']}-way " if task["way"] else ""
    note = overlap_note(task.get("allow_overlap", False))
    return f"{way}{task['shot']}-shot on {task['dataset']} ({task['split']}{note})"


def _ablations(title: str, rows: Sequence[tuple[str, str, str, str]], results: Results) -> FilledTable:
    """Return the published settings, with one column for each network on the test classes of miniImageNet."""
    names = list(dict.fromkeys(name for _, name, _, _ in rows))
    columns: dict[str, dict[str, str]] = {}  # of each network the accuracies by ablation and variant
    for ablation in (result for result in results if result.get("name") in names):
        if (ablation["task"]["dataset"], ablation["task"]["split"]) == ("mini-imagenet", "test"):
            recipe, length = ablation["recipe"], ablation["rows"][0]["training_episodes"]
            trained = f", each trained {length} episodes" if length else ""
            network = f"{recipe['name']}, seed {recipe['seed']}{trained}, {task_words(ablation['task'])}"
            for row in ablation["rows"]:
                key = f"{ablation['name']} {row['variant']} "
                columns.setdefault(network, {})[key] = with_interval(row["accuracy"], row["ci95"])
    cells = []
    for setting, name, variant, published in rows:
        start = f"{name} {variant} "
        measured = (
            [text for key, text in columns[network].items() if key.startswith(start)] for network in sorted(columns)
        )
        cells.append((setting, published, *(texts[0] if texts else "not run" for texts in measured)))
    done = {result.get("name") for result in results if result["recipe"]["name"] == _PAPER_RECIPE}
    commands = [
        f"tapnet ablate {name} {'--recipe ' if name in _TRAINED else '--checkpoint runs/'}{_PAPER_RECIPE} "
        "--episodes 30000 --record results"
        for name in names
        if name not in done
    ]
    headings = ("setting", "published, 5-way 5-shot miniImageNet", *sorted(columns))
    notes = ["Ablations on other datasets are not comparable with these; results/README.md has them."]
    return FilledTable(title, headings, cells, commands=commands, notes=notes)


TABLES: dict[str, Callable[[Results], FilledTable]] = {
    **{name: partial(_accuracies, table) for name, table in ACCURACIES.items()},
    "hyperparameters": _hyperparameters,
    **{name: partial(_ablations, values["title"], values["rows"]) for name, values in ABLATION_TABLES.items()},
    "parameters": _parameters,
    **{name: partial(_accuracies, table) for name, table in RIVALS.items()},
}

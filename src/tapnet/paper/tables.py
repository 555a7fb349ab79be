"""The paper's tables, with our results beside the published numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tapnet.checkpoint import lineage_from
from tapnet.errors import UserError
from tapnet.evaluation.candidates import without_seed
from tapnet.paper.ablations.rows import task_words
from tapnet.paper.parameters import PARAMETERS, count_parameters
from tapnet.paper.published import (
    ACCURACIES,
    EPISODE_COMPOSITION,
    HYPERPARAMETERS,
    REFERENCES,
    Cell,
    PaperTable,
    Task,
)
from tapnet.paper.rivals import COSTS, RIVAL_TABLES, RivalTable, accuracy_cell, best_known, costs
from tapnet.recipe import load_recipe
from tapnet.text import with_interval

Results = list[dict[str, Any]]

_PAPER_RECIPE = "mini-imagenet-5shot"  # the recipe of the supplement's ablations


@dataclass(frozen=True)
class FilledTable:
    """A table ready to print: headings, rows of text, what was run, the commands for what was not, and notes."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    runs: list[str]
    commands: list[str]
    notes: list[str] = field(default_factory=list)


def filled_table(name: str, results: Results) -> FilledTable:
    """Return a published table with our results, or `not run`, beside or below those of TapNet.

    `results` are evaluations and ablations, as `tapnet.paper.results` reads them.
    """
    if name not in TABLES:
        raise UserError(f"A table is one of {', '.join(TABLES)}, got {name!r}.")
    return TABLES[name](results)


def _accuracies(table: PaperTable) -> Callable[[Results], FilledTable]:
    def fill(results: Results) -> FilledTable:
        rows: list[tuple[str, ...]] = []
        runs: Results = []
        missing: dict[str, list[Task]] = {}
        own_rows = ((recipe, _recipe_cells(recipe, table.columns)) for recipe in table.own_recipes)
        for method, cells in (*table.rows, *own_rows):
            if any(cell.published != "—" for cell in cells):
                rows.append((method, *(cell.published for cell in cells)))
            if not any(cell.recipe for cell in cells):
                continue
            ours = []
            for cell, task in zip(cells, table.columns, strict=True):
                found = matching_results(cell.recipe, task, results) if cell.recipe else []
                ours.append(summary(found) if found or cell.recipe else "—")
                runs += found
                if cell.recipe and not found:
                    missing.setdefault(cell.recipe, []).append(task)
            rows.append((f"{method}, ours", *ours))
        commands = [_command(recipe, tasks) for recipe, tasks in missing.items()]
        headings = ("method", *(task.heading for task in table.columns))
        return FilledTable(table.title, headings, rows, _origins(runs), commands, list(table.notes))

    return fill


def _recipe_cells(recipe: str, columns: Sequence[Task]) -> tuple[Cell, ...]:
    """Return the cells of a recipe that is not in the paper: those of its dataset."""
    dataset = load_recipe(recipe).data.name
    return tuple(Cell("—", recipe if task.dataset == dataset else None) for task in columns)


def matching_results(recipe: str | None, task: Task, results: Results) -> Results:
    """Return the results of a recipe, or of any, on test classes of this task, by the paper's protocol."""
    experiment = None if recipe is None else experiment_of(load_recipe(recipe).as_dict())
    wanted = {
        "split": "test",
        "dataset": task.dataset,
        "classes": task.classes,
        "way": task.way,
        "shot": task.shot,
        "query": task.query,
        "episodes": task.episodes,
    }
    return [
        result
        for result in results
        if experiment in (None, experiment_of(result["recipe"]))
        and wanted.items() <= result.get("evaluation", {}).items()
    ]


def summary(results: Results) -> str:
    """Return the accuracy of a network with its interval, or the mean and range over seeds of training."""
    if not results:
        return "not run"
    accuracies = sorted(100 * result["evaluation"]["accuracy"] for result in results)
    if len(results) == 1:
        return with_interval(results[0]["evaluation"]["accuracy"], results[0]["evaluation"]["ci95"])
    mean = sum(accuracies) / len(accuracies)
    return f"{mean:.2f} ({len(results)} seeds: {accuracies[0]:.2f} to {accuracies[-1]:.2f})"


def _origins(results: Results) -> list[str]:
    """Return a line for each network: where its numbers come from."""
    tasks: dict[str, list[str]] = {}
    for result in results:
        recipe, task, trained = result["recipe"], result["evaluation"], result["trained"]
        device = trained["hardware"].get("device_name", "hardware unknown")
        what = f"{recipe['name']}: {recipe['method']['name']} with {recipe['backbone']['name']}"
        network = f"{what}, seed {recipe['seed']}, kept after {saved_after(result)}, {device}"
        tasks.setdefault(network, []).append(f"{task['way']}-way {task['shot']}-shot")
    return [f"{network}; {' and '.join(dict.fromkeys(found))}" for network, found in tasks.items()]


def saved_after(result: dict[str, Any]) -> str:
    """Return after how many of how many training episodes the network was saved, with notes on its run."""
    trained, episodes = result["trained"], result["recipe"]["training"]["episodes"]
    unfinished = trained.get("state", "finished") not in ("finished", "unknown")
    notes = [*(["the run is not finished"] if unfinished else []), *lineage_from(trained["lineage"]).parents()]
    return f"{trained['episodes']:,} of {episodes:,} training episodes" + (f" ({'; '.join(notes)})" if notes else "")


def _command(recipe: str, tasks: list[Task]) -> str:
    found = load_recipe(recipe)
    as_drawn = " --rotations 1" if rotations_of(found.as_dict()["data"], "test") > 1 else ""
    evaluations = (
        f"tapnet evaluate runs/{recipe}{as_drawn} --way {task.way} --shot {task.shot} --query {task.query} "
        f"--episodes {task.episodes} --record results"
        for task in tasks
    )
    training = found.training
    others = [f"initialized from {', '.join(training.init_from)}"] if training.init_from else []
    others += [f"distilled from {', '.join(training.teachers)}"] if training.teachers else []
    return " && ".join([f"tapnet train {recipe}", *evaluations]) + (f"  # {', '.join(others)}" if others else "")


def rotations_of(data: dict[str, Any], split: str) -> int:
    """Return in how many rotations each validation or test class of a recipe's data counts as a class."""
    rotations = data.get("options", {}).get("rotations", {})
    return int(rotations.get(split, 1) if isinstance(rotations, dict) else rotations)


def experiment_of(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe without what does not change the experiment: its seed, and the paths of data and weights.

    The number of training classes is left out too: training fills it in.
    """
    options = {name: value for name, value in recipe["method"]["options"].items() if name != "num_classes"}
    method = recipe["method"] | {"options": options}
    return without_seed(recipe) | {"name": recipe["name"], "method": method}


_SETTINGS = ("N_c", "N_q", "rate", "step", "by", "l2", "dropout")


def _hyperparameters(_: Results) -> FilledTable:
    """Return the published settings, and where our recipe differs."""
    rows: list[tuple[str, ...]] = []
    for name, published in HYPERPARAMETERS:
        recipe = load_recipe(name)
        training = recipe.training
        ours = (
            str(training.way),
            str(training.query),
            _power(training.learning_rate),
            str(training.decay_every),
            f"{training.decay_ratio:g}",
            _power(training.weight_decay) if training.weight_decay else "-",
            " ".join(f"{rate:.1f}".lstrip("0") for rate in recipe.backbone.options["dropout"]),
        )
        settings = zip(_SETTINGS, published, ours, strict=True)
        other = [f"{setting} {value}" for setting, paper, value in settings if value != paper]
        rows.append((name, *published, ", ".join(other) or "same"))
    headings = ("recipe", *_SETTINGS, "ours")
    return FilledTable("Supplement, Table 2: settings of meta-training", headings, rows, [], [])


def _power(value: float) -> str:
    """Return 0.001 as 1e-3."""
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _parameters(_: Results) -> FilledTable:
    """Return the published numbers of parameters, ours counted alike, and all that a method adds to its backbone."""
    rows: list[tuple[str, ...]] = []
    for row in PARAMETERS:
        rows += [(row.name, *row.published, ""), (f"{row.name}, ours", *count_parameters(row))]
    title = "Supplement, Table 5: number of parameters, images of 84×84 (ours: weights without biases)"
    headings = ("method", "feature extractor", "further layers", "further parts", "all besides backbone")
    notes = [f"{row.name}: {row.note}." for row in PARAMETERS if row.note]
    return FilledTable(title, headings, rows, [], [], notes)


def _references(results: Results) -> FilledTable:
    """Return the settings of the references, one column for each network that was varied."""
    names = {name for _, name, _, _ in REFERENCES}
    ablations = [result for result in results if result.get("name") in names and result["task"]["split"] == "test"]
    networks = sorted({_network(ablation) for ablation in ablations})
    rows, commands = [], []
    for setting, name, variant, published in REFERENCES:
        cells = [_variant(name, variant, network, ablations) for network in networks]
        rows.append((setting, published, *cells))
        if not any((ablation["name"], ablation["recipe"]["name"]) == (name, _PAPER_RECIPE) for ablation in ablations):
            source = "--recipe " if name == "initial-norm" else "--checkpoint runs/"
            commands.append(f"tapnet ablate {name} {source}{_PAPER_RECIPE} --episodes 30000 --record results")
    title = "Supplement, section 2.3: settings of the references, accuracy in %"
    headings = ("references", "published, 5-way 5-shot miniImageNet", *networks)
    runs = [ablation["command"] for ablation in ablations]
    return FilledTable(title, headings, rows, runs, list(dict.fromkeys(commands)))


def _network(ablation: dict[str, Any]) -> str:
    """Return the network of an ablation in a few words."""
    recipe, length = ablation["recipe"], ablation["rows"][0]["training_episodes"]
    trained = f", each trained {length} episodes" if length else ""
    seed = f", seed {recipe['seed']}" if recipe["seed"] else ""
    return f"{recipe['name']}{seed}{trained}, {task_words(ablation['task'])}"


def _variant(name: str, variant: str, network: str, ablations: Results) -> str:
    rows = [
        row
        for ablation in ablations
        if ablation["name"] == name and _network(ablation) == network
        for row in ablation["rows"]
        if row["variant"] == variant
    ]
    return with_interval(rows[0]["accuracy"], rows[0]["ci95"]) if rows else "not run"


def _episode_composition(results: Results) -> FilledTable:
    """Return training classes against queries: the published rows, then one for each variant that was trained."""
    name = "episode-composition"
    ablations = [result for result in results if result.get("name") == name and result["task"]["split"] == "test"]
    rows = [(f"{way}-way {query}-query", f"{accuracy} (published)") for way, query, accuracy in EPISODE_COMPOSITION]
    for ablation in ablations:
        for row in ablation["rows"]:
            rows.append((row["variant"], f"{with_interval(row['accuracy'], row['ci95'])} ({_network(ablation)})"))
    command = f"tapnet ablate {name} --recipe {_PAPER_RECIPE} --episodes 30000 --record results"
    paper = any(ablation["recipe"]["name"] == _PAPER_RECIPE for ablation in ablations)
    title = "Supplement, Table 1: composition of training episodes, 5-way 5-shot miniImageNet, accuracy in %"
    runs = [ablation["command"] for ablation in ablations]
    return FilledTable(title, ("training episodes", "accuracy"), rows, runs, [] if paper else [command])


def _rivals(table: RivalTable) -> Callable[[Results], FilledTable]:
    def fill(results: Results) -> FilledTable:
        """Return every method: below the published row ours, with its cost."""
        rows: list[tuple[str, ...]] = []
        runs: Results = []
        commands = []
        evaluated = {result["recipe"]["name"] for result in results if "evaluation" in result}
        for rival in table.rivals:
            found = {task: best_known(table, rival, *task, results) for task in table.tasks}
            runs += [result for result in found.values() if result]
            if any(cell != "—" for cell in rival.published):
                rows.append((rival.name, *rival.published, *("",) * len(COSTS)))
            cells = [accuracy_cell(table, rival, *task, results) for task in table.tasks]
            rows.append((f"{rival.name}, ours", *cells, *costs(table, rival, results)))
            commands += [_rival_command(table, recipe) for recipe in rival.recipes if recipe not in evaluated]
        return FilledTable(table.title, table.headings, rows, _origins(runs), commands, list(table.notes))

    return fill


def _rival_command(table: RivalTable, recipe: str) -> str:
    most = load_recipe(recipe).build_on_meta(table.image_shape).max_way
    way = next((tested for tested, _ in table.tasks if tested == most), table.tasks[0][0])
    shots = ",".join(str(shot) for tested, shot in table.tasks if tested == way)
    task = f"--way {way} --shot {shots} --query {table.protocol['query']} --episodes {table.episodes} --record results"
    return f"tapnet train {recipe} --no-test && tapnet evaluate runs/{recipe} {task}"


TABLES: dict[str, Callable[[Results], FilledTable]] = {
    **{name: _accuracies(table) for name, table in ACCURACIES.items()},
    "episode-composition": _episode_composition,
    "hyperparameters": _hyperparameters,
    "references": _references,
    "parameters": _parameters,
    **{name: _rivals(table) for name, table in RIVAL_TABLES.items()},
}

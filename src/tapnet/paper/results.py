"""Recorded results: `results/DATASET/RECIPE.json` has every run of a recipe with its evaluations and ablations.

    {"format": 1, "runs": [{"recipe": …, "trained": …, "validation": …, "evaluations": […], "ablations": […]}]}

An entry also has the command, version and commit that made it, so that it can be repeated.
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tapnet import __version__
from tapnet.checkpoint import Header
from tapnet.errors import NotFoundError, UserError
from tapnet.evaluation.evaluator import Evaluation, Evaluator
from tapnet.hardware import describe
from tapnet.paths import write_atomically
from tapnet.recipe import recipe_from
from tapnet.training.outcome import commit

FORMAT = 1
OWN_IMAGES = "own-images"  # a folder of results of another kind
Result = dict[str, Any]  # an entry, with the recipe, training and validation of its run

_TASK = ("dataset", "split", "classes", "way", "shot", "query", "episodes", "seed")


def record(
    folder: Path,
    header: Header,
    result: Evaluation,
    overlap: Mapping[str, Any] | None = None,
    state: str = "unknown",
    seconds: float | None = None,
) -> Path:
    """Write the result of evaluating a checkpoint and return the file; one of the same recipe and task is replaced.

    `overlap` counts classes that were not unseen, `seconds` is the time of training.
    """
    evaluation = result.as_dict() | dict(overlap or {"allow_overlap": False})
    return _add(folder, _run(header, state, seconds), "evaluations", _origin() | {"evaluation": evaluation})


def ablation_result(
    name: str,
    header: Header,
    evaluator: Evaluator,
    task: dict[str, Any],
    rows: list[dict[str, Any]],
    overlap: Mapping[str, Any] | None = None,
) -> Result:
    """Return the record of an ablation: its network, its episodes, and one row per variant."""
    images = evaluator.images
    data = {"dataset": images.name, "split": images.split, "classes": len(images.class_names)}
    measured_on = task | data | {"data_sha256": images.fingerprint} | dict(overlap or {"allow_overlap": False})
    hardware = describe(evaluator.device, evaluator.precision)
    return _run(header) | _origin() | {"name": name, "hardware": hardware, "task": measured_on, "rows": rows}


def record_ablation(folder: Path, result: Result) -> Path:
    """Write the result of an ablation and return the file; one of the same recipe and task is replaced."""
    run = {key: result[key] for key in ("recipe", "trained", "validation")}
    return _add(folder, run, "ablations", {key: value for key, value in result.items() if key not in run})


def _origin() -> dict[str, Any]:
    return {"command": shlex.join(["tapnet", *sys.argv[1:]]), "version": __version__, "commit": commit()}


def _run(header: Header, state: str = "unknown", seconds: float | None = None) -> dict[str, Any]:
    trained = {
        "episodes": header.episode,  # of the checkpoint
        "state": state,  # of its run
        "seconds": seconds,  # of training, the whole run
        "hardware": header.hardware,
        "data": header.data,
        "version": header.version,
        "lineage": asdict(header.lineage),
    }
    return {"recipe": header.recipe.as_dict(), "trained": trained, "validation": header.validation}


def _add(folder: Path, run: dict[str, Any], kind: str, entry: dict[str, Any]) -> Path:
    """Write an entry into the file of its recipe, in place of one of the same recipe and task."""
    recipe = run["recipe"]
    dataset = recipe["data"]["name"].replace(":", "-")  # module:Class
    path: Path = folder / dataset / f"{recipe['name']}.json"
    runs = _read_runs(path) if path.exists() else []
    for other in runs:
        if _recipe(other) == _recipe(run):
            other[kind] = [kept for kept in other[kind] if _task(kept) != _task(entry)]
    same = next((other for other in runs if _identity(other) == _identity(run)), None)
    if same is None:
        runs.append(same := run | {"evaluations": [], "ablations": []})
    elif run["trained"]["state"] != "unknown":
        same["trained"] = run["trained"]
    same[kind].append(entry)
    kept_runs = [other for other in runs if other["evaluations"] or other["ablations"]]
    text = json.dumps({"format": FORMAT, "runs": kept_runs}, indent=1, sort_keys=True, ensure_ascii=False)
    write_atomically(path, f"{text}\n".encode())
    return path


def _recipe(run: Mapping[str, Any]) -> str:
    recipe = run["recipe"]
    return json.dumps(recipe | {"data": recipe["data"] | {"root": None}}, sort_keys=True)


def _identity(run: Mapping[str, Any]) -> str:
    """Return a text that two entries of one network share, whatever is known about its training."""
    trained = {key: value for key, value in run["trained"].items() if key not in ("state", "seconds")}
    return _recipe(run) + json.dumps([trained, run["validation"]], sort_keys=True)


def _task(entry: Mapping[str, Any]) -> list[Any]:
    task = entry.get("evaluation") or entry["task"]
    return [entry.get("name"), *(task.get(key) for key in _TASK)]


def read_results(folder: Path) -> list[Result]:
    """Return every recorded evaluation, by dataset and recipe; raise UserError for a file that is not of this kind."""
    return list(_entries(sorted(folder.glob("*/*.json")), "evaluations"))


def read_ablations(folder: Path) -> list[Result]:
    """Return every recorded ablation, by name, then by dataset and recipe."""
    return sorted(_entries(sorted(folder.glob("*/*.json")), "ablations"), key=lambda ablation: str(ablation["name"]))


def read_ablation(path: Path, name: str) -> Result:
    """Return the ablation of this name that was recorded last in the file of a recipe."""
    command = f"`tapnet ablate {name} … --record results`"
    if not path.is_file():
        raise NotFoundError(f"There is no recorded ablation {path}: write one by {command}.")
    named = [ablation for ablation in _entries([path], "ablations") if ablation["name"] == name]
    if not named:
        raise UserError(f"{path} has no ablation {name}: add one by {command}.")
    return named[-1]


def _entries(paths: Iterable[Path], kind: str) -> Iterator[Result]:
    for path in (path for path in paths if path.parent.name != OWN_IMAGES):
        for run in _read_runs(path):
            yield from ({key: run[key] for key in ("recipe", "trained", "validation")} | entry for entry in run[kind])


def _read_runs(path: Path) -> list[dict[str, Any]]:
    """Return the runs in a file, their recipes with defaults for keys that are newer."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise UserError(f"its format is {content['format']}, this version of tapnet has {FORMAT}")
        runs: list[dict[str, Any]] = content["runs"]
        for run in runs:
            run["recipe"] = recipe_from(run["recipe"], "its recipe").as_dict()
    except (ValueError, KeyError, TypeError) as error:  # no text, no JSON, no recipe
        raise UserError(f"{path} is not a file of recorded results ({error}): write it by `--record`.") from None
    return runs

"""Recorded results: one JSON file per evaluation or ablation, with everything needed to repeat it."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any

from tapnet import __version__
from tapnet.checkpoint import Header
from tapnet.errors import NotFoundError, UserError
from tapnet.evaluation.evaluator import Evaluation, Evaluator
from tapnet.hardware import describe
from tapnet.paths import write_atomically
from tapnet.recipe import recipe_from
from tapnet.training.provenance import commit

INTERVAL = "student"  # how `ci95_bootstrap` was computed; earlier versions used the normal quantile
DROPPED = "dropped"  # it was too narrow, and the network no longer exists
ABLATIONS = "ablations"  # the folder of ablations in that of results
_DIGITS = 8  # of a digest in a file name
_MEASURED = ("accuracy", "ci95", "way", "shot", "query", "episodes", "classes")


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
    task = f"{result.dataset}-{result.split}{result.classes}-{result.way}way-{result.shot}shot-{result.episodes}"
    path = folder / f"{header.recipe.name}-seed{header.recipe.seed}-{task}.json"
    content = {
        **_origin(header, state, seconds),
        "validation": header.validation,
        "evaluation": result.as_dict() | dict(overlap or {"allow_overlap": False}) | {"interval": INTERVAL},
    }
    return _write(path, content)


def ablation_result(
    name: str,
    header: Header,
    evaluator: Evaluator,
    task: dict[str, Any],
    rows: list[dict[str, Any]],
    overlap: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the record of an ablation: its network, its episodes, and one row per variant."""
    images = evaluator.images
    return {
        "kind": "ablation",
        "name": name,
        **_origin(header),
        "hardware": describe(evaluator.device, evaluator.precision),
        "task": task
        | {
            "dataset": images.name,
            "split": images.split,
            "classes": len(images.class_names),
            "data_sha256": images.fingerprint,
        }
        | dict(overlap or {"allow_overlap": False}),
        "rows": rows,
    }


def record_ablation(folder: Path, result: dict[str, Any]) -> Path:
    """Write the result of an ablation and return the file; one of the same recipe and task is replaced."""
    task, recipe, length = result["task"], result["recipe"], result["rows"][0]["training_episodes"]
    network = f"{recipe['name']}-seed{recipe['seed']}" + (f"-trained{length}" if length else "")
    way = f"{task['way']}way-" if task["way"] else ""
    episodes = f"{task['dataset']}-{task['split']}{task['classes']}-{way}{task['shot']}shot-{task['episodes']}"
    return _write(folder / ABLATIONS / f"{result['name']}-{network}-{episodes}.json", result)


def _origin(header: Header, state: str = "unknown", seconds: float | None = None) -> dict[str, Any]:
    """Return the command, the version of the code, and the network: its recipe and how it was trained."""
    return {
        "command": shlex.join(["tapnet", *sys.argv[1:]]),
        "version": __version__,
        "commit": commit(),
        "recipe": header.recipe.as_dict(),
        "trained": {
            "episodes": header.episode,  # of the checkpoint
            "state": state,  # of its run
            "seconds": seconds,  # of training, the whole run
            "hardware": header.hardware,
            "data": header.data,
            "version": header.version,
            "lineage": asdict(header.lineage),
        },
    }


def _write(path: Path, content: dict[str, Any]) -> Path:
    path = _path_for(path, content)
    write_atomically(path, (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode())
    return path


def _path_for(path: Path, content: dict[str, Any]) -> Path:
    """Return the file with a result of this experiment, else a free path: the given one, or one with a digest."""
    ours = _experiment(content)
    for kept in (path, *sorted(path.parent.glob(f"{path.stem}-{'?' * _DIGITS}.json"))):
        with suppress(OSError, ValueError, KeyError, TypeError):  # other files are left alone
            if _experiment(json.loads(kept.read_text(encoding="utf-8"))) == ours:
                return kept
    return path.with_stem(f"{path.stem}-{sha256(ours.encode()).hexdigest()[:_DIGITS]}") if path.exists() else path


def _experiment(content: dict[str, Any]) -> str:
    """Return a text that identifies an experiment: its recipe, and those parts of its task not in the file name."""
    recipe, task = _complete(content["recipe"]), content.get("evaluation") or content["task"]
    return json.dumps(
        [recipe | {"data": recipe["data"] | {"root": None}}, task["query"], task.get("seed")], sort_keys=True
    )


def _complete(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return a recipe of an earlier version with defaults for the keys that are newer."""
    return recipe_from(recipe, "its recipe").as_dict()


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Return every recorded result, sorted by file name; raise UserError for a file that is not one."""
    results = []
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            content["recipe"] = _complete(content["recipe"])
            _check_numbers(content["evaluation"], _MEASURED)
            _check_numbers(content["trained"], ("episodes",))
        except (ValueError, KeyError, TypeError) as error:  # no text, no JSON, no recipe
            raise UserError(
                f"{path} is not a recorded result ({error}): write it by `tapnet evaluate --record {folder}`."
            ) from None
        results.append(content)
    return results


def _check_numbers(values: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if isinstance(values[name], bool) or not math.isfinite(values[name]):
            raise UserError(f"expected a number for {name}, got {values[name]!r}")


def read_ablations(folder: Path) -> list[dict[str, Any]]:
    """Return every recorded ablation, sorted by file name."""
    return [read_ablation(path) for path in sorted((folder / ABLATIONS).glob("*.json"))]


def read_ablation(path: Path) -> dict[str, Any]:
    """Return a recorded ablation; raise UserError if the file is not one."""
    if not path.is_file():
        raise NotFoundError(f"There is no recorded ablation {path}: write one by `tapnet ablate … --record results`.")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        content["recipe"] = _complete(content["recipe"])
        content["name"], content["task"]["way"], content["rows"][0]
        for row in content["rows"]:
            _check_numbers(row, ("accuracy", "ci95"))
    except (ValueError, KeyError, TypeError, IndexError) as error:  # no text, no JSON, no recipe
        raise UserError(
            f"{path} is not a recorded ablation ({error}): write one by `tapnet ablate … --record results`."
        ) from None
    return content

"""Results that are kept: one JSON file per evaluation or ablation, with all that is needed to repeat it."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from tapnet._version import __version__
from tapnet.checkpoint import Header, write_atomically
from tapnet.errors import NotFoundError, UserError
from tapnet.evaluation.evaluator import Evaluation, Evaluator
from tapnet.hardware import describe
from tapnet.recipe import recipe_from
from tapnet.training.provenance import commit

INTERVAL = "student"  # how `ci95_bootstrap` was computed; earlier versions took the normal quantile
DROPPED = "dropped"  # it was too narrow, and the network is not there to measure it again
ABLATIONS = "ablations"  # the folder of them among the results
CHECKPOINTS = "checkpoints"  # the folder of networks that are kept beside their results
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
    """Write the result of evaluating a checkpoint; a second one of the same recipe and task replaces it.

    `overlap` says which classes were not unseen, `seconds` how long the run has trained.
    """
    task = f"{result.dataset}-{result.split}{result.classes}-{result.way}way-{result.shot}shot-{result.episodes}"
    path = folder / f"{header.recipe.name}-seed{header.recipe.seed}-{task}.json"
    content = {
        **_origin(header, state, seconds),
        "validation": header.validation,
        "evaluation": result.as_dict() | dict(overlap or {"allow_overlap": False}) | {"interval": INTERVAL},
    }
    return _written(path, content)


def ablation_result(
    name: str,
    header: Header,
    evaluator: Evaluator,
    task: dict[str, Any],
    rows: list[dict[str, Any]],
    overlap: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """What is to be kept of an ablation: of which network, on which episodes, and one row per variant."""
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
    """Write the result of an ablation; a second one of the same recipe and task replaces it."""
    task, recipe, length = result["task"], result["recipe"], result["rows"][0]["training_episodes"]
    network = f"{recipe['name']}-seed{recipe['seed']}" + (f"-trained{length}" if length else "")
    way = f"{task['way']}way-" if task["way"] else ""
    episodes = f"{task['dataset']}-{task['split']}{task['classes']}-{way}{task['shot']}shot-{task['episodes']}"
    return _written(folder / ABLATIONS / f"{result['name']}-{network}-{episodes}.json", result)


def _origin(header: Header, state: str = "unknown", seconds: float | None = None) -> dict[str, Any]:
    """The command, by which code it was run, and what network it was run on: its recipe, and how that was trained."""
    return {
        "command": shlex.join(["tapnet", *sys.argv[1:]]),
        "version": __version__,
        "commit": commit(),
        "recipe": header.recipe.as_dict(),
        "trained": {
            "episodes": header.episode,  # after which the checkpoint was kept
            "state": state,  # of its run
            "seconds": seconds,  # of training, all of the run
            "hardware": header.hardware,
            "data": header.data,
            "version": header.version,
            "origin": header.origin,
        },
    }


def _written(path: Path, content: dict[str, Any]) -> Path:
    path = _own(path, content)
    write_atomically(path, (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode())
    return path


def _own(path: Path, content: dict[str, Any]) -> Path:
    """The file that holds a result of this experiment, else the path; where another has that, with a digest of ours."""
    ours = _experiment(content)
    for kept in (path, *sorted(path.parent.glob(f"{path.stem}-{'?' * _DIGITS}.json"))):
        with suppress(OSError, ValueError, KeyError, TypeError):  # what is no result of ours is left alone
            if _experiment(json.loads(kept.read_text(encoding="utf-8"))) == ours:
                return kept
    return path.with_stem(f"{path.stem}-{sha256(ours.encode()).hexdigest()[:_DIGITS]}") if path.exists() else path


def _experiment(content: dict[str, Any]) -> str:
    """What a result is of, as text: the recipe, wherever its data lies, and of the task what no file name tells."""
    recipe, task = _whole(content["recipe"]), content.get("evaluation") or content["task"]
    return json.dumps(
        [recipe | {"data": recipe["data"] | {"root": None}}, task["query"], task.get("seed")], sort_keys=True
    )


def _whole(recipe: dict[str, Any]) -> dict[str, Any]:
    """A recipe with the keys that are younger than it, as they were understood before."""
    return recipe_from(recipe, "its recipe").as_dict()


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Every kept result, in the order of the file names; a file that is none is named."""
    results = []
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            content["recipe"] = _whole(content["recipe"])
            _check_numbers(content["evaluation"], _MEASURED)
            _check_numbers(content["trained"], ("episodes",))
        except (ValueError, KeyError, TypeError) as error:  # no text, no JSON, no recipe
            raise UserError(
                f"{path} is not a kept result ({error}): write it by `tapnet evaluate --record {folder}`."
            ) from None
        results.append(content)
    return results


def _check_numbers(values: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if isinstance(values[name], bool) or not math.isfinite(values[name]):
            raise UserError(f"expected a number for {name}, got {values[name]!r}")


def read_ablations(folder: Path) -> list[dict[str, Any]]:
    """Every kept ablation, in the order of the file names."""
    return [read_ablation(path) for path in sorted((folder / ABLATIONS).glob("*.json"))]


def read_ablation(path: Path) -> dict[str, Any]:
    """A kept ablation; a file that is none is named."""
    if not path.is_file():
        raise NotFoundError(f"There is no kept ablation {path}: write one by `tapnet ablate … --record results`.")
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        content["recipe"] = _whole(content["recipe"])
        content["name"], content["task"]["way"], content["rows"][0]
        for row in content["rows"]:
            _check_numbers(row, ("accuracy", "ci95"))
    except (ValueError, KeyError, TypeError, IndexError) as error:  # no text, no JSON, no recipe
        raise UserError(
            f"{path} is not a kept ablation ({error}): write one by `tapnet ablate … --record results`."
        ) from None
    return content

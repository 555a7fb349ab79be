"""Results that are kept: one JSON file an evaluation, with all that is needed to repeat it."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

from tapnet.checkpoint import Header, write_atomically
from tapnet.evaluation import Evaluation


def record(folder: Path, header: Header, result: Evaluation) -> Path:
    """Write the result of evaluating a checkpoint; a second one of the same checkpoint and task replaces it."""
    task = f"{result.dataset}-{result.split}-{result.way}way-{result.shot}shot"
    path = folder / f"{header.recipe.name}-seed{header.recipe.seed}-{task}.json"
    content = {
        "command": shlex.join(["tapnet", *sys.argv[1:]]),
        "recipe": header.recipe.as_dict(),
        "trained": {"episodes": header.episode, "hardware": header.hardware, "data": header.data},
        "validation": header.validation,
        "version": header.version,
        "evaluation": result.as_dict(),
    }
    write_atomically(path, (json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n").encode())
    return path


def read_results(folder: Path) -> list[dict[str, Any]]:
    """Every kept result, in the order of the file names; a file that is none is named."""
    results = []
    for path in sorted(folder.glob("*.json")):
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            content["recipe"]["name"], content["evaluation"]["accuracy"]
        except (json.JSONDecodeError, KeyError, TypeError):
            raise ValueError(f"{path} is not a kept result: write it by `tapnet evaluate --record {folder}`.") from None
        results.append(content)
    return results

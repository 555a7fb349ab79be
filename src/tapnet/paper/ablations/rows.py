"""The rows of an ablation: accuracies on identical episodes with their paired differences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tapnet.evaluation.evaluator import Accuracies, mean_and_ci95
from tapnet.text import overlap_note


@dataclass(frozen=True)
class Row:
    """A variant: its accuracy, and its difference from the base on the same episodes, if there is a base."""

    variant: str
    accuracy: float
    ci95: float
    difference: float | None = None
    difference_ci95: float | None = None
    references_first: float | None = None  # accuracy with the directions of the references as the first columns
    lowest: float | None = None  # accuracy over rotations of the null space
    highest: float | None = None
    training_episodes: int | None = None  # if the variant was trained for the ablation


def paired(accuracies: Mapping[str, Accuracies], base: str | None = None) -> list[Row]:
    """Return one row per variant, from its accuracy in each episode; the base is the first unless named."""
    base = next(iter(accuracies)) if base is None else base
    rows = []
    for variant, values in accuracies.items():
        differences = (None, None) if variant == base else mean_and_ci95(values - accuracies[base])
        rows.append(Row(variant, *mean_and_ci95(values), *differences))
    return rows


Any_Row = TypeVar("Any_Row")
_MOST_ROWS = 30


def subsample_rows(rows: Sequence[Any_Row], best: Any_Row) -> list[Any_Row]:
    """Return all rows or, if they are many, the 1st, 2nd, 5th, 10th and so on, the best and the last."""
    if len(rows) <= _MOST_ROWS:
        return list(rows)
    steps = {digit * 10**power for power in range(6) for digit in (1, 2, 5)} | {len(rows)}
    return [row for number, row in enumerate(rows, 1) if number in steps or row is best]


def task_words(task: Mapping[str, Any]) -> str:
    """Return a recorded task in a few words, without the way if rows differ in it."""
    way = f"{task['way']}-way " if task["way"] else ""
    note = overlap_note(task.get("allow_overlap", False))
    return f"{way}{task['shot']}-shot on {task['dataset']} ({task['split']}{note})"

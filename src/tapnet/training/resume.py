"""Which recipes may resume a run: those that would have led to its current state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tapnet.errors import UserError
from tapnet.recipe import Recipe
from tapnet.training.schedule import learning_rate

_FREE = ("name", "training.episodes", "training.cycles", "training.teachers")  # their digests are compared elsewhere


def check_resumable(folder: Path, before: Recipe, now: Recipe, done: int) -> None:
    """Raise UserError if the run in the folder, after `done` episodes by one recipe, may not resume by another."""
    old, new = _flat(before.as_dict()), _flat(now.as_dict())
    changed = [key for key in old | new if key not in _FREE and old.get(key) != new.get(key)]
    if changed:
        what = ", ".join(f"{key} from {old.get(key)} to {new.get(key)}" for key in changed)
        raise UserError(
            f"{folder} holds a run of another recipe: only {', '.join(_FREE)} may change, got {what}. Choose another "
            "folder."
        )
    old_training, new_training = before.training, now.training
    if new_training.episodes <= done and new_training.episodes != old_training.episodes:
        raise UserError(
            f"{folder} has done {done} episodes already: training.episodes needs to be more, got "
            f"{new_training.episodes}."
        )
    if any(learning_rate(old_training, episode) != learning_rate(new_training, episode) for episode in range(done)):
        raise UserError(
            f"The cosine of {folder} resumes in whole cycles of {old_training.episodes // old_training.cycles} "
            f"episodes: for instance training.episodes={2 * old_training.episodes} "
            f"training.cycles={2 * old_training.cycles}."
        )


def _flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values of a nested dictionary by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return flat

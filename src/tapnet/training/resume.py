"""Which recipes may resume a run: those that would have led it to where it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tapnet.errors import UserError
from tapnet.recipe import Recipe
from tapnet.training.schedule import learning_rate

_FREE = ("name", "training.episodes", "training.cycles")


def check_resumable(folder: Path, before: Recipe, now: Recipe, done: int) -> None:
    """Raise UserError if the run in the folder, after so many episodes by one recipe, may not resume by another."""
    old, new = _flat(before.as_dict()), _flat(now.as_dict())
    changed = [key for key in old | new if key not in _FREE and old.get(key) != new.get(key)]
    if changed:
        what = ", ".join(f"{key} from {old.get(key)} to {new.get(key)}" for key in changed)
        raise UserError(
            f"{folder} holds a run of another recipe: only {', '.join(_FREE)} may change, got {what}. Give another "
            "folder."
        )
    was, asked = before.training, now.training
    if asked.episodes <= done and asked.episodes != was.episodes:
        raise UserError(
            f"{folder} has {done} episodes behind it: training.episodes needs to be more, got {asked.episodes}."
        )
    if any(learning_rate(was, episode) != learning_rate(asked, episode) for episode in range(done)):
        raise UserError(
            f"The cosine of {folder} resumes in whole cycles of {was.episodes // was.cycles} episodes: for instance "
            f"training.episodes={2 * was.episodes} training.cycles={2 * was.cycles}."
        )


def _flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Values by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return flat

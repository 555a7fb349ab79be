"""The folder of a run.

- recipe.yaml: the recipe
- run.json: command, versions, commit, data, seed, hardware, state
- curve.jsonl: the learning curve, one point per line
- references.safetensors: snapshots of the method at these points
- best.safetensors: the best checkpoint on validation classes
- last.safetensors: the state to resume from; previous.safetensors: the one before it
- evaluation.json: the final evaluation on test classes
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from tapnet.checkpoint import Checkpoint, read_checkpoint
from tapnet.errors import NotFoundError, UserError
from tapnet.paths import BEST, LAST, write_atomically
from tapnet.recipe import Recipe, load_recipe
from tapnet.training.trajectory import TRAJECTORY

CURVE, METADATA, RECIPE, EVALUATION = "curve.jsonl", "run.json", "recipe.yaml", "evaluation.json"
PREVIOUS = "previous.safetensors"
_LOCK = ".lock"


@dataclass(frozen=True)
class Point:
    """One point of the learning curve."""

    episode: int  # training episodes done
    loss: float  # mean since the last point
    training_accuracy: float  # on the queries of those episodes
    validation_accuracy: float
    validation_ci95: float
    learning_rate: float
    diagnostics: dict[str, float] = field(default_factory=dict)  # of the method


class RunFolder:
    """Reads and writes the folder of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def held(self) -> Iterator[None]:
        """Lock the folder, so that no other process trains in it; a killed process releases it."""
        lock = FileLock(self.path / _LOCK, timeout=0)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            process = self.metadata().get("process") or {}
            raise UserError(
                f"{self.path} is in use by process {process.get('pid', '?')} on {process.get('host', '?')}: wait until "
                "it ends, or choose another folder."
            ) from None
        except OSError as error:
            raise OSError(f"{self.path} cannot be written ({error.strerror}): choose another folder.") from None
        try:
            yield
        finally:
            lock.release()

    @property
    def is_held(self) -> bool:
        """Whether a process trains in this folder now."""
        if not (self.path / _LOCK).exists():
            return False
        try:
            with FileLock(self.path / _LOCK, timeout=0):
                return False
        except Timeout:
            return True

    def begin(self, recipe: Recipe, metadata: dict[str, Any]) -> None:
        """Start a fresh folder with its recipe and metadata; raise UserError if it holds a run or a network."""
        if any((self.path / name).exists() for name in (LAST, PREVIOUS)):
            raise UserError(
                f"{self.path} already holds a run: resume it by `tapnet train --resume {self.path}`, or choose another "
                "folder.",
                parameter="out",
            )
        if (self.path / BEST).exists():
            raise UserError(f"{self.path} already holds a network, {BEST}: choose another folder.", parameter="out")
        if (self.path / RECIPE).exists() and not (self.path / METADATA).exists():
            raise UserError(
                f"{self.path} holds a {RECIPE} that is not of a run and would be overwritten: choose another folder.",
                parameter="out",
            )
        self.update(**metadata)
        self._write_recipe(recipe)
        self.write_curve([])

    def _write_recipe(self, recipe: Recipe) -> None:
        text = yaml.safe_dump(recipe.as_dict(), sort_keys=False, allow_unicode=True)
        write_atomically(self.path / RECIPE, text.encode())

    def check_best(self) -> None:
        """Raise UserError if there is a best checkpoint that cannot be read."""
        if (self.path / BEST).exists():
            try:
                read_checkpoint(self.path / BEST)
            except ValueError as error:
                raise UserError(f"{error} Delete it to resume without it.") from None

    def switch_recipe(self, recipe: Recipe) -> None:
        """Change the recipe of the run to this one, if it differs, and delete its evaluation."""
        with suppress(OSError, ValueError):  # a missing or damaged file counts as different
            if load_recipe(str(self.path / RECIPE)) == recipe:
                return
        if (self.path / BEST).exists():
            best = read_checkpoint(self.path / BEST)
            replace(best, header=replace(best.header, recipe=recipe, calibration={})).write(self.path / BEST)
        (self.path / EVALUATION).unlink(missing_ok=True)
        self._write_recipe(recipe)  # last: if a process is killed before, the next one repeats all of it

    def save(self, checkpoint: Checkpoint) -> None:
        """Write the state to last.safetensors atomically; keep the one before it as previous.safetensors."""
        last, previous = self.path / LAST, self.path / PREVIOUS
        if last.exists():
            previous.unlink(missing_ok=True)
            try:
                os.link(last, previous)
            except OSError:  # a file system without links
                shutil.copyfile(last, previous)
        checkpoint.write(last)

    def newest(self) -> Checkpoint:
        """Return the newest readable state; warn if it is not the last one."""
        if not any((self.path / name).is_file() for name in (LAST, PREVIOUS)):
            raise NotFoundError(f"There is no run in {self.path} to resume (no {LAST}): `tapnet runs` lists the runs.")
        try:
            return read_checkpoint(self.path / LAST)
        except (ValueError, FileNotFoundError) as error:
            if not (self.path / PREVIOUS).exists():
                raise
            try:
                checkpoint = read_checkpoint(self.path / PREVIOUS)
            except ValueError:
                raise UserError(
                    f"{self.path} has no state to resume from: {PREVIOUS} is damaged, {LAST} damaged or missing. Start "
                    "the run again in another folder."
                ) from error
            warnings.warn(
                f"{self.path / LAST} is damaged or missing. Resuming from the checkpoint before it, after episode "
                f"{checkpoint.header.episode}.",
                RuntimeWarning,
                stacklevel=2,
            )
            return checkpoint

    def clear_leftovers(self) -> None:
        """Delete temporary files of a process that was killed while writing."""
        for name in (BEST, LAST, CURVE, TRAJECTORY, METADATA, RECIPE, EVALUATION):
            for leftover in self.path.glob(f".{name}.*"):
                leftover.unlink(missing_ok=True)

    def write_curve(self, points: list[Point]) -> None:
        write_atomically(self.path / CURVE, "".join(json.dumps(asdict(point)) + "\n" for point in points).encode())

    def metadata(self) -> dict[str, Any]:
        """Return the content of run.json; empty if it is missing or damaged."""
        return _json_object(self.path / METADATA)

    def update(self, **entries: Any) -> None:
        """Add these entries to run.json, or replace them."""
        text = json.dumps(self.metadata() | entries, indent=2, ensure_ascii=False)
        write_atomically(self.path / METADATA, text.encode() + b"\n")

    def evaluation(self) -> list[dict[str, Any]]:
        """Return the results of the final evaluation, one per task; empty if its file is missing or damaged."""
        listed = _json_object(self.path / EVALUATION).get("results")
        return [each for each in listed if is_result(each)] if isinstance(listed, list) else []

    def record_evaluation(self, results: list[dict[str, Any]]) -> None:
        """Write the final evaluation, with one entry per task."""
        text = json.dumps({"checkpoint": BEST, "results": results}, indent=2)
        write_atomically(self.path / EVALUATION, text.encode() + b"\n")


def read_curve(folder: Path) -> list[Point]:
    """Return the points of a run's learning curve."""
    path = folder / CURVE
    if not path.is_file():
        raise NotFoundError(f"{folder} holds no {CURVE}: expected the folder of a training run.")
    try:
        return [_point(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}).") from None


def _point(values: Any) -> Point:
    """Return the point in a line of the curve; earlier versions wrote `reference_distance` outside `diagnostics`."""
    if not isinstance(values, dict):
        raise TypeError(f"expected an object, got {type(values).__name__}")
    distance = values.pop("reference_distance", None)
    if distance is not None:
        values["diagnostics"] = {"reference_distance": distance}
    return Point(**values)


def is_result(value: Any) -> bool:
    """Return whether this is an accuracy with its interval and task, and not what a damaged file holds instead."""
    names = "accuracy", "ci95", "way", "shot"
    return isinstance(value, dict) and all(isinstance(value.get(name), int | float) for name in names)


def _json_object(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}

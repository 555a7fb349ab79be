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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import yaml
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from tapnet.checkpoint import Checkpoint, read_checkpoint, read_header
from tapnet.errors import NotFoundError, UserError
from tapnet.paths import BEST, LAST, write_atomically
from tapnet.recipe import Recipe, load_recipe

CURVE, METADATA, RECIPE, EVALUATION = "curve.jsonl", "run.json", "recipe.yaml", "evaluation.json"
PREVIOUS, SNAPSHOTS = "previous.safetensors", "references.safetensors"
EPISODES, _LOCK = "episodes", ".lock"
_FREE = ("name", "training.episodes", "training.cycles", "training.teachers")  # their digests are compared elsewhere


@dataclass(frozen=True)
class Point:
    """One point of the learning curve; the first is that of the start, which has no loss yet."""

    episode: int  # training episodes done
    loss: float | None  # mean since the last point
    training_accuracy: float | None  # on the queries of those episodes
    validation_accuracy: float
    validation_ci95: float
    learning_rate: float
    diagnostics: dict[str, float] = field(default_factory=dict)  # of the method


class RunFolder:
    """Reads and writes the folder of a run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def locked(self) -> Iterator[None]:
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

    def begin(self, recipe: Recipe, metadata: dict[str, Any]) -> None:
        """Start a fresh folder with its recipe and metadata; raise UserError if it holds a run or a network."""
        problem = ""
        if any((self.path / name).exists() for name in (LAST, PREVIOUS)):
            problem = f"already holds a run: resume it by `tapnet train --resume {self.path}`, or"
        elif (self.path / BEST).exists():
            problem = f"already holds a network, {BEST}:"
        elif (self.path / RECIPE).exists() and not (self.path / METADATA).exists():
            problem = f"holds a {RECIPE} that is not of a run and would be overwritten:"
        if problem:
            raise UserError(f"{self.path} {problem} choose another folder.", parameter="out")
        self.update(**metadata)
        self._write_recipe(recipe)
        write_atomically(self.path / CURVE, b"")

    def resume(self, recipe: Recipe, metadata: dict[str, Any]) -> None:
        """Continue a run: delete temporary files of a killed process, update run.json.

        If its recipe has changed, so has that of the best checkpoint, and the evaluation is deleted.
        """
        for name in (BEST, LAST, CURVE, SNAPSHOTS, METADATA, RECIPE, EVALUATION):
            for leftover in self.path.glob(f".{name}.*"):
                leftover.unlink(missing_ok=True)
        resumed = [*self.metadata().get("resumed", []), metadata]
        self.update(state="running", process=metadata["process"], resumed=resumed, ended=None)
        with suppress(OSError, ValueError):  # a missing or damaged file counts as different
            if load_recipe(str(self.path / RECIPE)) == recipe:
                return
        if (self.path / BEST).exists():
            best = read_checkpoint(self.path / BEST)
            replace(best, header=replace(best.header, recipe=recipe, calibration={})).write(self.path / BEST)
        (self.path / EVALUATION).unlink(missing_ok=True)
        self._write_recipe(recipe)  # last: if a process is killed before, the next one repeats all of it

    def _write_recipe(self, recipe: Recipe) -> None:
        text = yaml.safe_dump(recipe.as_dict(), sort_keys=False, allow_unicode=True)
        write_atomically(self.path / RECIPE, text.encode())

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

    def check_readable(self) -> None:
        """Raise UserError if the curve, the snapshots or the best checkpoint, if there is one, cannot be read."""
        read_curve(self.path)
        read_snapshots(self.path)
        if (self.path / BEST).exists():
            try:
                read_checkpoint(self.path / BEST)
            except ValueError as error:
                raise UserError(f"{error} Delete it to resume without it.") from None

    def add_point(self, point: Point, snapshot: Mapping[str, Tensor]) -> None:
        """Add a point to the learning curve, and to the snapshots one of the method; later ones are cut off."""
        points = [earlier for earlier in read_curve(self.path) if earlier.episode < point.episode]
        lines = [json.dumps(asdict(kept)) + "\n" for kept in (*points, point)]
        write_atomically(self.path / CURVE, "".join(lines).encode())
        if not snapshot:
            return
        before = read_snapshots(self.path)
        is_kept = before[EPISODES] < point.episode
        stacked = {EPISODES: torch.cat([before[EPISODES][is_kept], torch.tensor([point.episode])])}
        for name, tensor in snapshot.items():
            new = tensor.detach().float().cpu()[None].contiguous()
            stacked[name] = torch.cat([before[name][is_kept], new]) if name in before else new
        write_atomically(self.path / SNAPSHOTS, save(stacked))

    def metadata(self) -> dict[str, Any]:
        """Return the content of run.json; empty if it is missing or damaged."""
        return _json_object(self.path / METADATA)

    def update(self, **entries: Any) -> None:
        """Add these entries to run.json, or replace them."""
        text = json.dumps(self.metadata() | entries, indent=2, ensure_ascii=False)
        write_atomically(self.path / METADATA, text.encode() + b"\n")

    def training_seconds(self) -> float | None:
        """Return how long a finished run has trained, all its parts together; `None` if that is not known."""
        metadata = self.metadata()
        return metadata.get("seconds") if metadata.get("state") == "finished" else None

    def evaluation(self) -> list[dict[str, Any]]:
        """Return the results of the final evaluation, one per task; empty if its file is missing or damaged."""
        results = _json_object(self.path / EVALUATION).get("results")
        return [result for result in results if _is_result(result)] if isinstance(results, list) else []

    def record_evaluation(self, results: list[dict[str, Any]]) -> None:
        """Write the final evaluation, with one entry per task."""
        text = json.dumps({"checkpoint": BEST, "results": results}, indent=2)
        write_atomically(self.path / EVALUATION, text.encode() + b"\n")


def check_resumable(folder: Path, before: Recipe, now: Recipe, done: int) -> None:
    """Raise UserError unless a run that has done so many episodes by one recipe would have done the same by another."""
    old, new = _flat(before.as_dict()), _flat(now.as_dict())
    changed = [key for key in old | new if key not in _FREE and old.get(key) != new.get(key)]
    if changed:
        what = ", ".join(f"{key} from {old.get(key)} to {new.get(key)}" for key in changed)
        raise UserError(
            f"{folder} holds a run of another recipe: only {', '.join(_FREE)} may change, got {what}. Choose another "
            "folder."
        )
    episodes, cycles = before.training.episodes, before.training.cycles
    if now.training.episodes <= done and now.training.episodes != episodes:
        raise UserError(
            f"{folder} has done {done} episodes already: training.episodes needs to be more, got "
            f"{now.training.episodes}."
        )
    cycle_changes = now.training.episodes // now.training.cycles != episodes // cycles
    if done and now.training.schedule == "cosine" and cycle_changes:
        raise UserError(
            f"The cosine of {folder} resumes in whole cycles of {episodes // cycles} episodes: for instance "
            f"training.episodes={2 * episodes} training.cycles={2 * cycles}."
        )


def _flat(values: dict[str, Any], path: str = "") -> dict[str, Any]:
    """Return the values of a nested dictionary by their dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{path}{key}.") if isinstance(value, dict) else {f"{path}{key}": value}
    return flat


def read_curve(folder: Path) -> list[Point]:
    """Return the points of a run's learning curve."""
    path = folder / CURVE
    if not path.is_file():
        raise NotFoundError(f"{folder} holds no {CURVE}: expected the folder of a training run.")
    try:
        return [Point(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    except (TypeError, ValueError) as error:
        raise UserError(f"{path} is damaged ({error}).") from None


def read_snapshots(folder: Path) -> dict[str, Tensor]:
    """Return the snapshots of a run's method, stacked by name, and as `episodes` when each was taken; empty without."""
    path = folder / SNAPSHOTS
    if not path.is_file():
        return {EPISODES: torch.zeros(0, dtype=torch.int64)}
    try:
        snapshots = load_file(path)
        return {EPISODES: snapshots.pop(EPISODES)} | snapshots
    except (SafetensorError, KeyError) as error:
        raise UserError(f"{path} is damaged ({error}): delete it to resume without it.") from None


@dataclass(frozen=True)
class RunSummary:
    """One line of `tapnet runs`."""

    folder: Path
    state: str  # running, finished, interrupted, failed, killed, unreadable
    episode: int
    episodes: int
    validation: dict[str, Any] | None
    evaluation: list[dict[str, Any]]
    started: str
    problem: str = ""  # why its state cannot be read


def find_runs(root: Path) -> list[RunSummary]:
    """Return a summary of each run in the folder and below it, sorted by name."""
    folders = {path.parent for name in (LAST, PREVIOUS) for path in root.rglob(name)}
    return [summarize_run(folder) for folder in sorted(folders)]


def summarize_run(folder: Path) -> RunSummary:
    """Return the progress and the results of a run."""
    run = RunFolder(folder)
    metadata, results = run.metadata(), run.evaluation()
    recorded, started = (str(metadata.get(name) or other) for name, other in (("state", "?"), ("started", "")))
    try:
        header = read_header(folder / LAST)
    except (ValueError, OSError) as error:
        return RunSummary(folder, "unreadable", 0, 0, None, results, started, str(error))
    try:
        with FileLock(folder / _LOCK, timeout=0) if (folder / _LOCK).exists() else nullcontext():
            state = "killed" if recorded == "running" else recorded
    except Timeout:  # a process trains in this folder now
        state = "running"
    validation = header.validation if _is_result(header.validation) else None
    return RunSummary(folder, state, header.episode, header.recipe.training.episodes, validation, results, started)


def _is_result(value: Any) -> bool:
    """Return whether this is an accuracy with its interval and task, and not what a damaged file holds instead."""
    names = "accuracy", "ci95", "way", "shot"
    return isinstance(value, dict) and all(isinstance(value.get(name), int | float) for name in names)


def _json_object(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}

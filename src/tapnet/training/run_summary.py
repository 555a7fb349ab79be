"""The progress and results of runs, as `tapnet runs` lists them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tapnet.checkpoint import read_header, written_by
from tapnet.paths import LAST
from tapnet.training.run_folder import PREVIOUS, RunFolder, is_result


@dataclass(frozen=True)
class RunSummary:
    """One line of a list of runs."""

    folder: Path
    state: str  # running, finished, interrupted, failed, killed, damaged, or other version
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
    state = "running" if run.is_held else "killed" if recorded == "running" else recorded
    try:
        header = read_header(folder / LAST)
    except (ValueError, OSError) as error:
        version = written_by(folder / LAST)
        state = "damaged" if version is None else "other version"
        words = f"{error} It was written by tapnet {version}." if version else str(error)
        return RunSummary(folder, state, 0, 0, None, results, started, words)
    validation = header.validation if is_result(header.validation) else None
    return RunSummary(folder, state, header.episode, header.recipe.training.episodes, validation, results, started)

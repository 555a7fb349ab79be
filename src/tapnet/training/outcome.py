"""How a run begins and ends: command and versions, Ctrl-C, errors that say how to resume, the final evaluation."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tapnet import hardware
from tapnet.checkpoint import read_checkpoint
from tapnet.data.episodes import NotEnoughDataError
from tapnet.data.packed import UnknownSplitError
from tapnet.evaluation.candidates import class_overlap
from tapnet.evaluation.evaluator import Evaluator
from tapnet.recipe import Recipe
from tapnet.text import one_line
from tapnet.training.run_folder import RunFolder

PACKAGES = ("tapnet", "lightning-fabric", "numpy", "safetensors", "scipy", "torch")
FINAL_EPISODES = 2000


def provenance() -> dict[str, Any]:
    """Return the command of this process, its time and host, and the versions it uses."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    process = {"pid": os.getpid(), "host": platform.node()}
    return {"command": sys.argv, "started": _now(), "process": process, "versions": versions, "commit": commit()}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache
def commit() -> str | None:
    """Return the commit of the checkout of this package, with `+changes` if files differ; `None` if it is installed.

    It is read once per process: results recorded in the checkout are not a change of the code.
    """
    checkout = Path(__file__).parents[3]
    if not (checkout / ".git").exists():
        return None
    git = ["git", "-C", str(checkout)]
    try:
        name, changes = (
            subprocess.run([*git, *words], capture_output=True, text=True, check=True, timeout=10).stdout.strip()
            for words in (("rev-parse", "HEAD"), ("status", "--porcelain", "-uno"))
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{name}+changes" if changes else name


class Interrupted(Exception):
    """The run was stopped and has saved its state in `folder`."""

    def __init__(self, folder: Path, episode: int, checkpoint: str) -> None:
        super().__init__(f"Stopped after episode {episode}; {folder / checkpoint} holds the state.")
        self.folder, self.episode = folder, episode


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets, so that a run can end cleanly; a second one kills."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def record_outcome(folder: RunFolder, saved_episode: Callable[[], int]) -> Iterator[None]:
    """Record in run.json how the run inside ends, and add to an error where its state is and how to resume."""
    began, before = time.monotonic(), float(folder.metadata().get("seconds", 0.0))

    def record(**entries: Any) -> None:
        if hardware.rank() == 0:
            with suppress(OSError):  # a full disk may be why the run ends
                folder.update(**entries, ended=_now(), seconds=round(before + time.monotonic() - began, 1))

    try:
        yield
    except BaseException as error:
        stopped, elsewhere = isinstance(error, Interrupted | KeyboardInterrupt), isinstance(error, SystemExit)
        reason = "Another process of this run failed and printed why." if elsewhere else one_line(error)
        record(state="interrupted" if stopped else "failed", reason=reason)
        rest = f"the checkpoint after episode {saved_episode()} is intact; resume with: tapnet train --resume"
        if isinstance(error, RuntimeError) and hardware.lost_process(error):
            lost = "Another process of this run has ended or cannot be reached"
            raise ConnectionError(f"{lost}: {rest} {folder.path}") from error
        if isinstance(error, OSError):
            where = f" ({error.filename})" if error.filename else ""
            raise OSError(f"{error.strerror or error}{where}. Fix that: {rest} {folder.path}") from error
        raise
    record(state="finished")


def final_evaluation(recipe: Recipe, folder: RunFolder, device: torch.device) -> None:
    """Write the accuracy of the best checkpoint on test classes to evaluation.json, or the reason why there is none.

    There is none if the dataset has no test classes, or too few images for episodes like those of validation, or if
    training or validation has used the test classes.
    """
    spec = recipe.validation.episode_spec(0)
    try:
        images = recipe.data.images("test")
        images.sampler(spec)
    except (UnknownSplitError, NotEnoughDataError) as reason:
        _record_test(folder, f"Not evaluated on test classes: {reason}")
        return
    checkpoint = read_checkpoint(folder.path)
    method, lineage = checkpoint.method().to(device), checkpoint.header.lineage
    overlap = class_overlap(recipe, method, images, lineage=lineage)
    uses = [f"training (data.train_split={recipe.data.train_split})"] if overlap.trained_on else []
    uses += [f"validation (validation.split={recipe.validation.split})"] if overlap.validated_on else []
    if uses:
        by = " and ".join(uses) + (", here or of a network that it learned from" if lineage.ancestors else "")
        why = f"Test classes were used by {by}, so their accuracy is not one on unseen classes."
        _record_test(folder, f"WARNING: no test result. {why}")
        return
    is_cached = not method.task_features  # otherwise every episode runs the whole network, so there are fewer
    episodes = max(spec.episodes, FINAL_EPISODES) if is_cached else spec.episodes
    result = Evaluator(method, images).evaluate(replace(spec, episodes=episodes), bootstrap=is_cached)
    _record_test(folder, None, result.as_dict() | overlap.as_dict())


def _record_test(folder: RunFolder, not_tested: str | None, result: dict[str, Any] | None = None) -> None:
    if hardware.rank() == 0:
        if result is not None:
            folder.record_evaluation([result])
        folder.update(not_tested=not_tested)

"""How a run ends: stopped by a signal, with an error that says how to resume, or finished; recorded in its folder."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from tapnet import hardware
from tapnet.text import one_line
from tapnet.training.provenance import now
from tapnet.training.run_folder import RunFolder


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
    started, before = time.monotonic(), folder.metadata().get("seconds", 0.0)

    def seconds() -> float:
        return round(float(before) + time.monotonic() - started, 1)

    try:
        yield
    except BaseException as error:
        state = "interrupted" if isinstance(error, Interrupted | KeyboardInterrupt) else "failed"
        _update(folder, state=state, ended=now(), seconds=seconds(), reason=_reason(error))
        _explain(error, folder, saved_episode())
        raise
    _update(folder, state="finished", ended=now(), seconds=seconds())


def _reason(error: BaseException) -> str:
    if isinstance(error, SystemExit):  # by `hardware.raise_together`: another process raises the error
        return "Another process of this run failed and printed why."
    return one_line(error)


def _update(folder: RunFolder, **metadata: Any) -> None:
    if hardware.rank() == 0:
        with suppress(OSError):  # on a full disk only the error itself is reported
            folder.update(**metadata)


def _explain(error: BaseException, folder: RunFolder, saved: int) -> None:
    """Raise an error of the disk, the data or another process again, with how to resume."""
    rest = f"the checkpoint after episode {saved} is intact; resume with: tapnet train --resume {folder.path}"
    if isinstance(error, RuntimeError) and hardware.lost_process(error):
        raise ConnectionError(f"Another process of this run has ended or cannot be reached: {rest}") from error
    if isinstance(error, OSError):
        where = f" ({error.filename})" if error.filename else ""
        raise OSError(f"{error.strerror or error}{where}. Fix that: {rest}") from error


def training_seconds(folder: RunFolder) -> float | None:
    """Return how long a finished run has trained, all its parts together; `None` if that is not known."""
    metadata = folder.metadata()
    if metadata.get("state") != "finished":
        return None
    if "seconds" in metadata:
        return float(metadata["seconds"])
    if metadata.get("resumed") or not (metadata.get("started") and metadata.get("ended")):
        return None  # earlier versions did not record when a part ended
    return (datetime.fromisoformat(metadata["ended"]) - datetime.fromisoformat(metadata["started"])).total_seconds()

"""How a run ended, recorded in its folder, and errors that say how to resume."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any

from tapnet import distributed
from tapnet.training.interruption import Interrupted
from tapnet.training.provenance import now
from tapnet.training.run_folder import RunFolder


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
    if isinstance(error, SystemExit):  # by `distributed.raise_together`: another process raises the error
        return "Another process of this run failed and printed why."
    return " ".join(str(error).split())


def _update(folder: RunFolder, **metadata: Any) -> None:
    if distributed.rank() == 0:
        with suppress(OSError):  # on a full disk only the error itself is reported
            folder.update(**metadata)


def _explain(error: BaseException, folder: RunFolder, saved: int) -> None:
    """Raise an error of the disk, the data or another process again, with how to resume."""
    rest = f"the checkpoint after episode {saved} is intact; resume with: tapnet train --resume {folder.path}"
    if isinstance(error, RuntimeError) and distributed.lost_process(error):
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

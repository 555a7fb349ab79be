"""Stopping a run between two episodes, on Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


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

"""Download the files of a dataset over HTTP; each is checked, and kept once it is whole."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from tapnet.data.dataset import Remote
from tapnet.errors import UserError

TIMEOUT = 30.0


class _Progress:
    """What pooch takes for a progress bar."""

    def __init__(self, report: Callable[[int, int], None]) -> None:
        self.report, self.total, self.done = report, 0, 0

    def update(self, count: int) -> None:
        self.done += count
        self.report(self.done, max(self.total, self.done))

    def reset(self) -> None:
        self.done = 0

    def close(self) -> None:
        pass


def download(remote: Remote, folder: Path, progress: Callable[[int, int], None]) -> Path:
    """Return the path of the complete, checked file in `folder`; what is there already is not fetched again.

    Raise ConnectionError if it cannot be fetched, UserError if it has another checksum.
    """
    import pooch  # takes a third of a second
    from requests import RequestException

    pooch.get_logger().setLevel(logging.WARNING)
    fetch = pooch.HTTPDownloader(progressbar=_Progress(progress), timeout=TIMEOUT)
    name = remote.url.rpartition("/")[2]
    try:
        return Path(pooch.retrieve(remote.url, f"md5:{remote.md5}", name, folder, downloader=fetch))
    except (RequestException, OSError) as error:
        raise ConnectionError(
            f"{remote.url} could not be fetched ({error}). Run the same command again when there is a network, "
            f"or fetch {name} elsewhere, put it into a folder and run `tapnet data prepare` on that."
        ) from None
    except ValueError as error:
        raise UserError(f"{remote.url} has another content than was published, try again: {error}") from None

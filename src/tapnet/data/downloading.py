"""Download files over HTTP: interrupted downloads are resumed, and every file is checked."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tapnet.errors import UserError

CHUNK = 1 << 18
TIMEOUT = 30.0


@dataclass(frozen=True)
class Remote:
    """A file at a public address, with its published MD5."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


OMNIGLOT_HOME = "https://raw.githubusercontent.com/brendenlake/omniglot/master/python"
DOWNLOADS: dict[str, tuple[Remote, ...]] = {
    "omniglot": (
        Remote(f"{OMNIGLOT_HOME}/images_background.zip", "68d2efa1b9178cc56df9314c21c6e718"),
        Remote(f"{OMNIGLOT_HOME}/images_evaluation.zip", "6b91aef0f799c5bb55b94e3f2daec811"),
    ),
}


def download(remote: Remote, folder: Path, progress: Callable[[int, int], None]) -> Path:
    """Return the path of the complete, checked file in `folder`; an interrupted download is resumed.

    Raise ConnectionError if it cannot be fetched, UserError if it has another checksum.
    """
    folder.mkdir(parents=True, exist_ok=True)
    target, part = folder / remote.name, folder / f"{remote.name}.part"
    if target.is_file() and md5_of(target) == remote.md5:
        return target
    try:
        _fetch(remote, part, progress)
    except (OSError, http.client.HTTPException) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        reason = getattr(cause, "strerror", None) or str(cause) or type(error).__name__
        raise ConnectionError(
            f"{remote.url} could not be fetched ({reason}). Run the same command again when there is a network, "
            f"or fetch {remote.name} elsewhere, put it into a folder and run `tapnet data prepare` on that."
        ) from None
    if (found := md5_of(part)) != remote.md5:
        part.unlink()
        raise UserError(f"Expected MD5 {remote.md5} of {remote.url}, got {found}: it was deleted; try again.")
    part.replace(target)
    return target


def _fetch(remote: Remote, part: Path, progress: Callable[[int, int], None]) -> None:
    have = part.stat().st_size if part.is_file() else 0
    request = urllib.request.Request(remote.url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        return  # nothing is left to fetch: the checksum decides
    with answer:
        resumed = answer.status == http.client.PARTIAL_CONTENT
        have = have if resumed else 0  # some servers send all of it again
        total = have + int(answer.headers.get("Content-Length") or 0)
        with part.open("ab" if resumed else "wb") as file:
            while piece := answer.read(CHUNK):
                have += file.write(piece)
                progress(have, max(total, have))
    if have < total:
        raise ConnectionError(f"the connection ended after {have:,} of {total:,} bytes")


def md5_of(path: Path) -> str:
    """Return the MD5 of a file, which protects against damage, not against malice."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()

"""Predictions as a folder of Parquet part files, local or in a bucket, each written whole and under a repeatable name.

Every part records the digest of the task and the options, so that predictions of two tasks never mix.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from tapnet.errors import UserError
from tapnet.inference.predictor import LOSE, Reject
from tapnet.jobs import storage
from tapnet.jobs.storage import import_pyarrow, is_address
from tapnet.text import one_line

METADATA = b"tapnet"  # the one key of ours in a part's metadata: JSON of the settings
_READERS = 16  # parts read at a time when a job continues: in a bucket each costs a round trip


@dataclass(frozen=True)
class Settings:
    """What decides a prediction besides the image."""

    task: str  # sha-256 of the task file
    top: int = 1
    reject: Reject = 0.0
    lose: float = LOSE

    def as_metadata(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()


@dataclass(frozen=True)
class PartFiles:
    """The part files of one job: columns file, class, probability, reason, sha256, task, and what options add."""

    folder: str
    settings: Settings

    def create(self) -> None:
        """Make the folder, unless it is in a bucket; raise UserError if it cannot be written or is a file."""
        if is_address(self.folder):
            return
        try:
            Path(self.folder).mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            raise UserError(f"{self.folder} is a file, expected a folder of part files: give another name.") from None
        except OSError as error:
            raise UserError(f"{self.folder} cannot be written ({error.strerror}): give another place.") from None
        if not os.access(self.folder, os.W_OK):
            raise UserError(f"{self.folder} cannot be written (Permission denied): give another place.")

    def write(self, rows: Sequence[dict[str, Any]]) -> str:
        """Write rows as one part and return its name, which follows from the images: written twice, it is one part.

        Raise UserError if the folder is not there, as on a machine that does not share it.
        """
        if not (is_address(self.folder) or Path(self.folder).is_dir()):
            raise UserError(f"{self.folder} is not there on {platform.node()}: give a folder that all machines share.")
        pyarrow = import_pyarrow()
        from pyarrow import parquet

        table = pyarrow.Table.from_pylist(list(rows), schema=self.schema())
        buffer = pyarrow.BufferOutputStream()
        parquet.write_table(table, buffer)
        names = "\n".join(row["file"] for row in rows).encode()
        name = f"part-{hashlib.sha256(names).hexdigest()[:24]}.parquet"
        storage.write_file(storage.join(self.folder, name), buffer.getvalue().to_pybytes())
        return name

    def schema(self) -> Any:
        """Return the columns of a part; `best_guess` is there with rejection, `top` with more than one class."""
        pyarrow = import_pyarrow()
        text, number = pyarrow.string(), pyarrow.float64()
        columns = {"file": text, "class": text, "probability": number}
        if self.settings.reject != 0:
            columns["best_guess"] = text
        if self.settings.top > 1:
            columns["top"] = pyarrow.list_(pyarrow.struct({"class": text, "probability": number}))
        columns |= {"reason": text, "sha256": text, "task": text}
        return pyarrow.schema(list(columns.items()), metadata={METADATA: self.settings.as_metadata()})

    def done(self, retry_unreadable: bool = False) -> set[str]:
        """Return the names of the images that the parts hold already.

        With `retry_unreadable`, rows of images that could not be read are removed first. Raise UserError if a part is
        damaged, or of another task or other options.
        """
        parts = self._parts()
        if retry_unreadable:
            for part in parts:
                self._remove_unreadable(part)
            parts = self._parts()
        with ThreadPoolExecutor(_READERS) as pool:
            return {name for names in pool.map(self._names, parts) for name in names}

    def _parts(self) -> list[str]:
        if not is_address(self.folder):
            return [str(path) for path in sorted(Path(self.folder).glob("[!.]*.parquet"))]
        try:
            return [file for file in storage.list_files(self.folder, recursive=False) if file.endswith(".parquet")]
        except FileNotFoundError:  # a bucket has no empty folders
            return []

    def _names(self, part: str) -> list[str]:
        return cast("list[str]", self._read(part, ["file"]).column("file").to_pylist())

    def _remove_unreadable(self, part: str) -> None:
        rows = self._read(part).to_pylist()
        readable = [row for row in rows if row["reason"] is None]
        if len(readable) < len(rows):
            storage.delete_file(part)  # first: killed in between, images are predicted again and none is there twice
            if readable:
                self.write(readable)

    def _read(self, part: str, columns: list[str] | None = None) -> Any:
        pyarrow = import_pyarrow()
        from pyarrow import parquet

        try:
            table = parquet.read_table(pyarrow.BufferReader(storage.read_file(part)), columns=columns)
        except (pyarrow.ArrowException, OSError) as error:
            raise UserError(
                f"{part} is damaged ({one_line(error)}): remove it, and the same command predicts its images again."
            ) from None
        self._check_settings(part, (table.schema.metadata or {}).get(METADATA))
        return table

    def _check_settings(self, part: str, found: bytes | None) -> None:
        if found is None:
            raise UserError(f"{part} was not written by `tapnet predict`: give a folder of its own.", parameter="out")
        if found != self.settings.as_metadata():
            differing = ", ".join(_differences(json.loads(found), asdict(self.settings)))
            raise UserError(
                f"{self.folder} holds predictions of another job ({differing}): give another folder, or remove it.",
                parameter="out",
            )


def _differences(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    for key in sorted(before | now):
        was, asked = before.get(key), now.get(key)
        if was != asked:
            yield f"{key} {str(was)[:12]}, now {str(asked)[:12]}"

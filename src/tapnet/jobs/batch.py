"""Batch prediction: what is missing in a folder of Parquet part files is predicted, a chunk of images to a part.

Each part is written whole and under a repeatable name, in a local folder or in a bucket. It records the digest of the
task and the options, so that predictions of two tasks never mix.
"""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tapnet.data.preprocessing import Preprocessing, Unreadable
from tapnet.errors import UserError
from tapnet.inference.folders import Skipped
from tapnet.inference.images import WORKERS, Example, read_images
from tapnet.inference.predictor import LOSE, Predictor, Reject, open_predictor
from tapnet.jobs import sources as storage
from tapnet.jobs.sources import CHUNK, Chunk, import_pyarrow, is_address, join, read_chunks, stored_name
from tapnet.text import one_line

METADATA = b"tapnet"  # the one key of ours in a part's metadata: JSON of the digest of the task and the options
_REMOTE_READERS = 16  # images or parts read at a time in a bucket, where each costs a round trip
ReadImage = tuple[str, Example | Unreadable]  # an image by name


@dataclass(frozen=True)
class WrittenPart:
    """What became of a chunk: the part file, its images, and those that could not be read, with the reason."""

    name: str
    images: int
    unreadable: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class BatchPrediction:
    """The images that have no row yet, and what is needed to predict them."""

    files: PredictorFiles
    parts: PartFiles
    missing: list[Chunk]
    total: int  # images of the sources, predicted or not
    skipped: Skipped

    @property
    def remaining(self) -> int:
        """How many images are to be predicted."""
        return sum(map(len, self.missing))

    def run(self, device: str = "cpu") -> Iterator[WrittenPart]:
        """Yield each part once it is written, predicted in this process; `on_ray.predict_on_ray` does so by others."""
        self.parts.create()
        predictor = self.files.open(device)
        chunks = (read_chunk(chunk, predictor.preprocessing) for chunk in self.missing)
        return (predict_part(chunk, predictor, self.parts) for chunk in chunks)


def plan_batch(
    task: str | Path,
    sources: Sequence[str | Path],
    out: str,
    *,
    network: str | None = None,
    column: str | None = None,
    top: int = 1,
    reject: Reject = 0.0,
    lose: float = LOSE,
    retry_unreadable: bool = False,
    chunk_size: int = CHUNK,
) -> BatchPrediction:
    """Return what is missing in the folder of part files `out` for these images to be predicted by the task.

    The folder is made when the first image is predicted; each of its parts holds at most `chunk_size` images. An image
    that is named twice counts once; different images of one name are refused.
    """
    open_predictor(task, network).check_options(top, reject, lose)
    files, skipped = PredictorFiles.read(task, network), Skipped()
    parts = PartFiles(out, hashlib.sha256(files.content).hexdigest(), top, reject, lose)
    chunks = list(read_chunks(sources, column, skipped, chunk_size))
    if not chunks:
        raise UserError(f"There is no image in {', '.join(map(str, sources))}.")
    bases, missing, done = dict[str, str](), list[Chunk](), parts.done(retry_unreadable)
    for chunk in chunks:
        if len(rest := chunk.without(bases.keys()).without(done)):
            missing.append(rest)
        for file in chunk.files:
            base = bases.setdefault(stored_name(file), chunk.base)
            if base != chunk.base and (first := join(chunk.base, file)) != (second := join(base, file)):
                words = f"{first} and {second} would both be called {file} in the output"
                raise UserError(f"{words}: list absolute paths, or give each list a folder of its own.")
    return BatchPrediction(files, parts, missing, len(bases), skipped)


@dataclass(frozen=True)
class PredictorFiles:
    """A task file and, where it is not bundled, its network: all that a worker elsewhere needs to predict."""

    name: str
    content: bytes
    network: str | None = None  # as given, or the name of a bundled or Hugging Face model
    weights: bytes | None = None  # the checkpoint, unless every installation has it

    @classmethod
    def read(cls, path: str | Path, network: str | None = None) -> PredictorFiles:
        """Return the files behind a task that can be opened here."""
        path = Path(path)
        content = path.read_bytes()
        if path.suffix.lower() == ".onnx":
            return cls(path.name, content)
        from tapnet.inference.networks import HUGGING_FACE
        from tapnet.inference.task import read_task
        from tapnet.paths import bundled_checkpoints, find_checkpoint

        wanted = network or read_task(path).network
        if wanted.startswith(HUGGING_FACE) or find_checkpoint(wanted) in bundled_checkpoints().values():
            return cls(path.name, content, network)
        return cls(path.name, content, network, find_checkpoint(wanted).read_bytes())

    def open(self, device: str = "cpu") -> Predictor:
        """Return the predictor, opened from copies in a temporary folder."""
        with tempfile.TemporaryDirectory() as folder:
            task, network = Path(folder, self.name), self.network
            task.write_bytes(self.content)
            if self.weights is not None:
                network = str(Path(folder, "network.safetensors"))
                Path(network).write_bytes(self.weights)
            return open_predictor(task, network, device)


def read_chunk(chunk: Chunk, preprocessing: Preprocessing) -> Iterator[ReadImage]:
    """Yield the images of a chunk by name, as the network takes them; threads read remote ones ahead."""
    workers = _REMOTE_READERS if chunk.is_remote else WORKERS
    read = read_images(chunk.images(), preprocessing, workers=workers, ahead=chunk.is_remote)
    return ((file, example) for file, (_, example) in zip(chunk.files, read, strict=True))


def predict_part(read: Iterable[ReadImage], predictor: Predictor, parts: PartFiles) -> WrittenPart:
    """Predict images that are read, and write them as one part: each is a row, with its class or with a reason."""
    rows: dict[str, dict[str, Any]] = {}

    def readable() -> Iterator[tuple[str, Example]]:
        for file, example in read:
            rows[file] = {"file": stored_name(file), "task": parts.task}  # keeps its place
            if isinstance(example, Unreadable):
                rows[file]["reason"] = example.reason
            else:
                yield file, example

    for batch in predictor.predict_examples(readable(), parts.top, parts.reject, parts.lose):
        for prediction in batch:
            rows[str(prediction.image)] |= {
                "class": prediction.label,
                "probability": prediction.probability,
                "best_guess": prediction.best,
                "top": [{"class": name, "probability": value} for name, value in prediction.ranked],
                "sha256": prediction.sha256,
            }
    unreadable = tuple((row["file"], row["reason"]) for row in rows.values() if "reason" in row)
    return WrittenPart(parts.write(list(rows.values())), len(rows), unreadable)


@dataclass(frozen=True)
class PartFiles:
    """The part files of one job: columns file, class, probability, reason, sha256, task, and what options add."""

    folder: str
    task: str  # sha-256 of the task file
    top: int = 1
    reject: Reject = 0.0
    lose: float = LOSE

    @property
    def settings(self) -> dict[str, Any]:
        """What decides a prediction besides the image."""
        return {"task": self.task, "top": self.top, "reject": self.reject, "lose": self.lose}

    def create(self) -> None:
        """Make the folder, unless it is in a bucket; raise UserError if it is a file."""
        try:
            if not is_address(self.folder):
                Path(self.folder).mkdir(parents=True, exist_ok=True)
        except FileExistsError:
            words = f"{self.folder} is a file, expected a folder of part files: give another name."
            raise UserError(words, parameter="out") from None

    def write(self, rows: Sequence[dict[str, Any]]) -> str:
        """Write rows as one part and return its name, which follows from the images: written twice, it is one part."""
        if not (is_address(self.folder) or Path(self.folder).is_dir()):
            raise UserError(f"{self.folder} is not there on {platform.node()}: give a folder that all machines share.")
        pyarrow = import_pyarrow()
        from pyarrow import parquet

        text, number = pyarrow.string(), pyarrow.float64()
        columns = {"file": text, "class": text, "probability": number}
        if self.reject != 0:
            columns["best_guess"] = text
        if self.top > 1:
            columns["top"] = pyarrow.list_(pyarrow.struct({"class": text, "probability": number}))
        columns |= {"reason": text, "sha256": text, "task": text}
        schema = pyarrow.schema(list(columns.items()), metadata={METADATA: json.dumps(self.settings)})
        buffer = pyarrow.BufferOutputStream()
        parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), buffer)
        names = "\n".join(row["file"] for row in rows).encode()
        name = f"part-{hashlib.sha256(names).hexdigest()[:24]}.parquet"
        storage.write_file(join(self.folder, name), buffer.getvalue().to_pybytes())
        return name

    def done(self, retry_unreadable: bool = False) -> set[str]:
        """Return the names of the images that the parts hold; `retry_unreadable` removes the unreadable ones first."""
        for part in self._paths() if retry_unreadable else ():
            table = self._read(part)
            readable = [row for row in table.to_pylist() if row["reason"] is None]
            if len(readable) < len(table):  # removed first: killed in between, images are predicted again, none twice
                filesystem, inside = storage.open_storage(part)
                filesystem.delete_file(inside)
                if readable:
                    self.write(readable)
        with ThreadPoolExecutor(_REMOTE_READERS) as pool:
            tables = pool.map(lambda part: self._read(part, ["file"]), self._paths())
            return {str(name) for table in tables for name in table.column("file").to_pylist()}

    def _paths(self) -> list[str]:
        if not is_address(self.folder):
            return [str(path) for path in sorted(Path(self.folder).glob("[!.]*.parquet"))]
        try:
            return [file for file in storage.list_files(self.folder, recursive=False) if file.endswith(".parquet")]
        except FileNotFoundError:  # a bucket has no empty folders
            return []

    def _read(self, part: str, columns: list[str] | None = None) -> Any:
        """Return the table of a part; raise UserError if it is damaged, or of another task or other options."""
        pyarrow = import_pyarrow()
        from pyarrow import parquet

        try:
            table = parquet.read_table(pyarrow.BufferReader(storage.read_file(part)), columns=columns)
        except (pyarrow.ArrowException, OSError) as error:
            words = f"{part} is damaged ({one_line(error)}): remove it, and the same command predicts its images again."
            raise UserError(words) from None
        metadata = (table.schema.metadata or {}).get(METADATA)
        if metadata is None:
            raise UserError(f"{part} was not written by `tapnet predict`: give a folder of its own.", parameter="out")
        before, now = json.loads(metadata), self.settings
        if differing := [key for key in now if before.get(key) != now[key]]:
            changes = ", ".join(f"{key} {str(before.get(key))[:12]}, now {str(now[key])[:12]}" for key in differing)
            words = f"{self.folder} holds predictions of another job ({changes}): give another folder, or remove it."
            raise UserError(words, parameter="out")
        return table

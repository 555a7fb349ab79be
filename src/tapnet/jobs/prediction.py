"""From a chunk of images to a part file: the same work in this process and in every worker of a cluster."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tapnet.data.preprocessing import Preprocessing
from tapnet.data.source import Unreadable
from tapnet.inference.images import WORKERS, Example, read_images
from tapnet.inference.predictor import Prediction, Predictor, open_predictor
from tapnet.jobs.parts import PartFiles
from tapnet.jobs.sources import Chunk
from tapnet.jobs.storage import stored_name

REMOTE_WORKERS = 16  # threads that read from a bucket, where an image takes a round trip
ReadImage = tuple[str, Example | Unreadable]  # an image by name


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
        from tapnet.inference.task_file import read_task
        from tapnet.paths import bundled_checkpoints, find_checkpoint

        wanted = network or read_task(path).network
        if wanted.startswith(HUGGING_FACE) or find_checkpoint(wanted) in bundled_checkpoints().values():
            return cls(path.name, content, network)
        return cls(path.name, content, network, find_checkpoint(wanted).read_bytes())

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    def open(self, device: str = "cpu") -> Predictor:
        """Return the predictor, opened from copies in a temporary folder."""
        with tempfile.TemporaryDirectory() as folder:
            task, network = Path(folder, self.name), self.network
            task.write_bytes(self.content)
            if self.weights is not None:
                network = str(Path(folder, "network.safetensors"))
                Path(network).write_bytes(self.weights)
            return open_predictor(task, network, device)


@dataclass(frozen=True)
class Part:
    """What became of a chunk: the part file, its images, and those that could not be read, with the reason."""

    name: str
    images: int
    unreadable: tuple[tuple[str, str], ...] = ()


def read_chunk(chunk: Chunk, preprocessing: Preprocessing) -> Iterator[ReadImage]:
    """Yield the images of a chunk by name, as the network takes them; threads read remote ones ahead."""
    workers = REMOTE_WORKERS if chunk.is_remote else WORKERS
    read = read_images(chunk.images(), preprocessing, workers=workers, ahead=chunk.is_remote)
    return ((file, example) for file, (_, example) in zip(chunk.files, read, strict=True))


def predict_part(read: Iterable[ReadImage], predictor: Predictor, parts: PartFiles) -> Part:
    """Predict images that are read, and write them as one part: each is a row, with its class or with a reason."""
    settings, rows = parts.settings, dict[str, dict[str, Any]]()

    def readable() -> Iterator[tuple[str, Example]]:
        for file, example in read:
            if isinstance(example, Unreadable):
                rows[file] = {"file": stored_name(file), "reason": example.reason, "task": settings.task}
            else:
                rows[file] = {}  # keeps its place
                yield file, example

    for batch in predictor.predict_examples(readable(), settings.top, settings.reject, settings.lose):
        for prediction in batch:
            rows[str(prediction.image)] = _row(prediction, settings.task)
    unreadable = tuple((row["file"], row["reason"]) for row in rows.values() if "reason" in row)
    return Part(parts.write(list(rows.values())), len(rows), unreadable)


def _row(prediction: Prediction, task: str) -> dict[str, Any]:
    return {
        "file": stored_name(str(prediction.image)),
        "class": prediction.label,
        "probability": prediction.probability,
        "best_guess": prediction.best,
        "top": [{"class": name, "probability": value} for name, value in prediction.ranked],
        "sha256": prediction.sha256,
        "task": task,
    }

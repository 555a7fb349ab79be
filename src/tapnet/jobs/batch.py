"""A batch prediction from beginning to end: what there is, what is missing, and who predicts it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tapnet.errors import UserError
from tapnet.inference.folders import Skipped
from tapnet.inference.predictor import LOSE, Reject, open_predictor
from tapnet.jobs.parts import PartFiles, Settings
from tapnet.jobs.prediction import Part, PredictorFiles, predict_part, read_chunk
from tapnet.jobs.sources import CHUNK, Chunk, read_chunks
from tapnet.jobs.storage import join, stored_name


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

    def run(self, device: str | None = None) -> Iterator[Part]:
        """Yield each part once it is written, predicted in this process."""
        self.parts.create()
        predictor = self.files.open(device or "cpu")
        chunks = (read_chunk(chunk, predictor.preprocessing) for chunk in self.missing)
        return (predict_part(chunk, predictor, self.parts) for chunk in chunks)

    def run_on_ray(
        self, address: str | None = None, workers: int | None = None, device: str | None = None
    ) -> Iterator[Part]:
        """Yield each part once it is written, predicted by the workers of a Ray cluster."""
        from tapnet.jobs.ray_prediction import predict_on_ray

        if not self.missing:
            return iter(())
        return predict_on_ray(self.missing, self.files, self.parts, address, workers, device or "auto")


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
    that is named twice counts once. Raise UserError if the task, a source or the folder cannot be used: missing,
    damaged, without images, with different images of one name, or with predictions of another task or by other options.
    """
    open_predictor(task, network).check_options(top, reject, lose)
    files, skipped = PredictorFiles.read(task, network), Skipped()
    parts = PartFiles(out, Settings(files.sha256, top, reject, lose))
    chunks = list(read_chunks(sources, column, skipped, chunk_size))
    if not chunks:
        raise UserError(f"There is no image in {', '.join(map(str, sources))}.")
    named, missing, done = dict[str, str](), list[Chunk](), parts.done(retry_unreadable)
    for chunk in chunks:
        if len(rest := chunk.without(named.keys()).without(done)):
            missing.append(rest)
        for file in chunk.files:
            _check_same_image(file, named.setdefault(stored_name(file), chunk.base), chunk.base)
    return BatchPrediction(files, parts, missing, len(named), skipped)


def _check_same_image(file: str, base: str, other: str) -> None:
    """Raise UserError if a name means different files below two folders, as in lists that lie in different folders."""
    if base != other and (first := join(base, file)) != (second := join(other, file)):
        raise UserError(
            f"{first} and {second} would both be called {file} in the output: list absolute paths, or give each list a "
            "folder of its own."
        )

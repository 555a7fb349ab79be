"""Batch prediction on Ray: one predictor per actor, chunks of images in, written part files out.

Ray Data hands a chunk to an actor when that one is free and holds a bounded number of results, so memory does not grow
with the number of images. Where there are GPUs, tasks on any CPU of the cluster read and decode for the actors that
have one; else each actor reads its own images, which spares sending pixels between processes.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from typing import Any

from tapnet.data.preprocessing import Preprocessing
from tapnet.errors import UserError
from tapnet.jobs.parts import PartFiles
from tapnet.jobs.prediction import Part, PredictorFiles, pack, predict_part, read_chunk, unpack
from tapnet.jobs.ray_session import plain_reason, ray_session
from tapnet.jobs.sources import Chunk

Row = dict[str, Any]
_CONTINUES = "What was written stays; the same command continues."


def predict_on_ray(
    chunks: Sequence[Chunk],
    files: PredictorFiles,
    parts: PartFiles,
    address: str | None = None,
    workers: int | None = None,
    device: str = "auto",
) -> Iterator[Part]:
    """Yield the part of each chunk once it is written, in the order in which they are finished.

    `workers` actors predict, by default one per GPU of the cluster or, if it has none, one per core. A worker that dies
    is replaced and its chunk done again. Raise UserError if there is no such cluster, or if a chunk cannot be done.
    """
    with ray_session(address) as ray:
        total = ray.cluster_resources()
        gpus = 0 if device == "cpu" else int(total.get("GPU", 0))
        size = min(workers or gpus or max(1, int(total.get("CPU", 1))), len(chunks))
        settings = ray.data.DataContext.get_current()
        settings.enable_progress_bars = False
        settings.print_on_execution_start = False
        data = ray.data.from_items(
            [{"chunk": pickle.dumps(chunk)} for chunk in chunks], override_num_blocks=len(chunks)
        )
        if gpus:
            data = data.map(_read, fn_args=(files.open().preprocessing,), num_cpus=1)
        written = data.map(
            _PartWriter,
            fn_constructor_args=(files, parts, device if gpus else "cpu"),
            compute=ray.data.ActorPoolStrategy(size=size, max_tasks_in_flight_per_actor=2),
            num_gpus=1 if gpus else None,
            num_cpus=0 if gpus else 1,
        )
        try:
            for batch in written.iter_batches(batch_size=None, batch_format="pyarrow"):
                yield from map(_part, batch.column("part").to_pylist())
        except ray.exceptions.RayError as error:
            raise UserError(f"{plain_reason(error)} {_CONTINUES}") from None


def _part(packed: bytes) -> Part:
    """Return the part that a worker wrote; raise UserError with what it says if it could not."""
    part: Part | str = pickle.loads(packed)
    if isinstance(part, str):
        raise UserError(f"{part} {_CONTINUES}")
    return part


def _read(row: Row, preprocessing: Preprocessing) -> Row:
    """Return the chunk in a row, read and decoded for an actor that has a GPU, or why that is not possible."""
    try:
        return pack(read_chunk(pickle.loads(row["chunk"]), preprocessing))
    except (UserError, OSError) as error:  # as a value: Ray would put its own words around it
        return {"error": str(error)}


class _PartWriter:
    """One predictor in a process of its own; predicts chunks, read already or not, and writes their parts."""

    def __init__(self, files: PredictorFiles, parts: PartFiles, device: str) -> None:
        self.predictor, self.parts = files.open(device), parts

    def __call__(self, row: Row) -> Row:
        return {"part": pickle.dumps(row.get("error") or self._written(row))}

    def _written(self, row: Row) -> Part | str:
        read = read_chunk(pickle.loads(row["chunk"]), self.predictor.preprocessing) if "chunk" in row else unpack(row)
        try:
            return predict_part(read, self.predictor, self.parts)
        except (UserError, OSError) as error:
            return str(error)

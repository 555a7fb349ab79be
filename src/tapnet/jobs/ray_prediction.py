"""Batch prediction on Ray: one predictor per actor, the names of a chunk of images in, a written part file out.

Each actor reads and decodes its own images, so no pixels travel between processes. Only where there are GPUs, tasks on
any core of the cluster read and decode for the actors. A bounded number of chunks is under way at a time, so memory
does not grow with the number of images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from tapnet.data.preprocessing import Preprocessing
from tapnet.errors import UserError
from tapnet.inference.predictor import Predictor
from tapnet.jobs.parts import PartFiles
from tapnet.jobs.prediction import Part, PredictorFiles, ReadImage, predict_part, read_chunk
from tapnet.jobs.ray_session import plain_reason, ray_session
from tapnet.jobs.sources import Chunk
from tapnet.jobs.storage import absolute

_AHEAD = 2  # chunks that an actor is given at a time: one to predict, one that waits
_RETRIES = 10  # of a chunk: an image on which every worker dies does not keep the cluster busy forever
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
    is replaced and its chunks done again. Raise UserError if there is no such cluster, or if a chunk cannot be done.
    """
    with ray_session(address) as ray:
        total = ray.cluster_resources()
        cpus, gpus = max(1, int(total.get("CPU", 1))), 0 if device == "cpu" else int(total.get("GPU", 0))
        needs = {"num_cpus": 0, "num_gpus": 1} if gpus else {"num_cpus": 1}
        parts.create()
        parts = replace(parts, folder=absolute(parts.folder))  # workers have other working folders
        writer = ray.remote(**needs, max_restarts=-1, max_task_retries=_RETRIES)(_PartWriter)
        shared = ray.put(files)
        inputs: Iterator[Any] = iter(chunks)
        if gpus:
            read, preprocessing = ray.remote(num_cpus=1, max_retries=_RETRIES)(_read), files.open().preprocessing
            inputs = (read.remote(chunk, preprocessing) for chunk in chunks)
        results = _results(
            ray,
            lambda: writer.remote(shared, parts, device if gpus else "cpu"),
            inputs,
            len(chunks),
            size=min(workers or gpus or cpus, len(chunks)),
            ahead=_AHEAD + (cpus // gpus if gpus else 0),
        )
        try:
            yield from results
        except ray.exceptions.RayError as error:
            raise UserError(f"{plain_reason(error)} {_CONTINUES}") from None


def _results(
    ray: Any, start: Callable[[], Any], inputs: Iterator[Any], count: int, size: int, ahead: int
) -> Iterator[Part]:
    """Yield what `size` actors return for `count` inputs; each is given `ahead` of them, once it has started.

    Nothing holds an actor that has no more work: its core is free for one that has lost its machine.
    """
    running = {actor.__ray_ready__.remote(): actor for actor in (start() for _ in range(size)) for _ in range(ahead)}
    while count:
        ray.wait(list(running))
        ended, _ = ray.wait(list(running), num_returns=len(running), timeout=0)  # one call for all of them
        for each in ended:
            actor = running.pop(each)
            if (images := next(inputs, None)) is not None:
                running[actor.write.remote(images)] = actor
            if isinstance(part := ray.get(each), Part):
                count -= 1
                yield part


def _read(chunk: Chunk, preprocessing: Preprocessing) -> list[ReadImage]:
    """Return the images of a chunk, decoded for an actor that has a GPU."""
    return list(read_chunk(chunk, preprocessing))


class _PartWriter:
    """One predictor in a process of its own; predicts chunks, read already or not, and writes their parts."""

    def __init__(self, files: PredictorFiles, parts: PartFiles, device: str) -> None:
        self.files, self.parts, self.device = files, parts, device

    @cached_property
    def predictor(self) -> Predictor:
        return self.files.open(self.device)

    def write(self, images: Chunk | list[ReadImage]) -> Part:
        read = read_chunk(images, self.predictor.preprocessing) if isinstance(images, Chunk) else images
        return predict_part(read, self.predictor, self.parts)

"""One thread per process runs the network: images of concurrent requests pass it as one batch."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from tapnet.inference.networks import EmbeddingModel

MOST = 64  # images of one batch, unless a single request has more
Features = NDArray[np.float32]


@dataclass(frozen=True)
class _Job:
    model: EmbeddingModel
    pixels: list[NDArray[np.uint8]]
    result: Future[Features]


class Batcher:
    """Embeds images for many threads; whatever waits when the network is free goes through it together."""

    def __init__(self) -> None:
        self.batches = self.images = 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="network", daemon=True)
        self._thread.start()

    def embed(self, model: EmbeddingModel, pixels: list[NDArray[np.uint8]]) -> Features:
        """Return features (n, *feature_shape); waits for its turn."""
        job = _Job(model, pixels, Future())
        self._jobs.put(job)
        return job.result.result()

    def close(self) -> None:
        """Finish what waits, then stop."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        left: _Job | None = None
        while (first := left or self._jobs.get()) is not None:
            batch, left, stop = self._collect(first)
            self._embed(batch)
            if stop:
                return

    def _collect(self, first: _Job) -> tuple[list[_Job], _Job | None, bool]:
        """Return jobs for one network, the first job for another one, and whether to stop afterwards."""
        batch, size = [first], len(first.pixels)
        while size < MOST:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return batch, None, True
            if job.model.sha256 != first.model.sha256:
                return batch, job, False
            batch.append(job)
            size += len(job.pixels)
        return batch, None, False

    def _embed(self, batch: list[_Job]) -> None:
        pixels = [image for job in batch for image in job.pixels]
        try:
            features = EmbeddingModel.embed(batch[0].model, pixels)
        except Exception as error:
            for job in batch:
                job.result.set_exception(error)
            return
        self.batches, self.images = self.batches + 1, self.images + len(pixels)
        ends = np.cumsum([len(job.pixels) for job in batch])
        for job, end in zip(batch, ends, strict=True):
            job.result.set_result(features[end - len(job.pixels) : end])


@dataclass(frozen=True)
class BatchedModel(EmbeddingModel):
    """A network whose images pass it together with those of other threads."""

    batcher: Batcher | None = None

    @classmethod
    def of(cls, model: EmbeddingModel, batcher: Batcher) -> BatchedModel:
        values = {each.name: getattr(model, each.name) for each in fields(EmbeddingModel)}
        return cls(**values, batcher=batcher)

    def embed(self, pixels: Iterable[NDArray[np.uint8]]) -> Features:
        assert self.batcher is not None
        return self.batcher.embed(self, list(pixels))

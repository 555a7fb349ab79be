"""One thread per process runs the network: images of concurrent requests pass it as one batch."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from tapnet.inference.networks import EmbeddingModel

MOST = 64  # images of one batch, unless a single request has more
Features = NDArray[np.float32]


@dataclass(frozen=True)
class _Job:
    pixels: list[NDArray[np.uint8]]
    features: Future[Features] = field(default_factory=Future)


class Batcher:
    """Embeds images for many threads; whatever waits when the network is free goes through it together."""

    def __init__(self) -> None:
        self.batches = self.images = 0
        self.waiting: defaultdict[str, deque[_Job]] = defaultdict(deque)  # by network
        self._thread = ThreadPoolExecutor(1, "network")

    def embed(self, model: EmbeddingModel, pixels: list[NDArray[np.uint8]]) -> Features:
        """Return features (n, *feature_shape); waits for its turn."""
        job, waiting = _Job(pixels), self.waiting[model.sha256]
        waiting.append(job)
        self._thread.submit(self._embed_waiting, model, waiting)
        return job.features.result()

    def close(self) -> None:
        """Finish what waits, then stop."""
        self._thread.shutdown()

    def _embed_waiting(self, model: EmbeddingModel, waiting: deque[_Job]) -> None:
        """Embed what waits for a network: nothing, if earlier calls took it along."""
        batch: list[_Job] = []
        while waiting and sum(len(job.pixels) for job in batch) < MOST:
            batch.append(waiting.popleft())
        if not batch:
            return
        pixels = [image for job in batch for image in job.pixels]
        try:
            features = EmbeddingModel.embed(model, pixels)
        except Exception as error:
            for job in batch:
                job.features.set_exception(error)
            return
        self.batches, self.images = self.batches + 1, self.images + len(pixels)
        ends = np.cumsum([len(job.pixels) for job in batch])
        for job, end in zip(batch, ends, strict=True):
            job.features.set_result(features[end - len(job.pixels) : end])


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

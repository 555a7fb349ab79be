"""Prediction of pictures in a stream: whatever gives probabilities, batch after batch. Nothing here needs PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tapnet.data.preprocessing import Preprocessing
from tapnet.inference.images import Example, in_batches

UNKNOWN = "unknown"
BATCH = 32


class Predictor(Protocol):
    """A fitted task with its network, or an exported one."""

    @property
    def classes(self) -> tuple[str, ...]: ...

    @property
    def preprocessing(self) -> Preprocessing: ...

    @property
    def hashes(self) -> tuple[str, ...]:
        """The sha-256 of its examples; none where they were not kept."""

    def probabilities(self, pixels: Sequence[NDArray[np.uint8]]) -> NDArray[np.floating]:
        """(n, way) for prepared pictures (height, width, channels)."""


@dataclass(frozen=True)
class Prediction:
    """One picture's classes, the most probable first; `label` is the first, or "unknown" when that was rejected."""

    file: Path
    label: str
    ranked: tuple[tuple[str, float], ...]

    @property
    def probability(self) -> float:
        return self.ranked[0][1]


def predictions(
    predictor: Predictor, pictures: Iterable[tuple[Path, Example]], top: int = 1, reject: float = 0.0
) -> Iterator[list[Prediction]]:
    """The predictions of each batch of pictures; "unknown" where the largest probability is below `reject`."""
    for batch in in_batches(pictures, BATCH):
        probabilities = predictor.probabilities([example.pixels for _, example in batch])
        yield [
            _prediction(path, row, predictor.classes, top, reject)
            for (path, _), row in zip(batch, probabilities, strict=True)
        ]


def _prediction(path: Path, row: NDArray[np.floating], classes: tuple[str, ...], top: int, reject: float) -> Prediction:
    order = np.argsort(-row, kind="stable")[:top]
    ranked = tuple((classes[k], float(row[k])) for k in order)
    return Prediction(path, UNKNOWN if ranked[0][1] < reject else ranked[0][0], ranked)

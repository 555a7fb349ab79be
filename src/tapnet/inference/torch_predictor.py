"""A fitted task together with its network: pictures in, probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tapnet.data.preprocessing import Preprocessing
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.task import Task


@dataclass(frozen=True)
class TaskPredictor:
    """Embeds with the network, then scores with the task."""

    task: Task
    network: EmbeddingModel

    @property
    def classes(self) -> tuple[str, ...]:
        return self.task.classes

    @property
    def preprocessing(self) -> Preprocessing:
        return self.network.image_preprocessing

    @property
    def hashes(self) -> tuple[str, ...]:
        return self.task.examples.hashes

    def probabilities(self, pixels: Sequence[NDArray[np.uint8]]) -> NDArray[np.floating]:
        return self.task.probabilities(self.network.embed(pixels))

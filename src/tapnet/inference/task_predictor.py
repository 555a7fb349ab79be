"""A fitted task together with its network: images in, probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from tapnet.data.preprocessing import Preprocessing
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.predictor import AUTO, LOSE, Predictor, Reject
from tapnet.inference.rejection import Rejection, fit_rejection
from tapnet.inference.task import Task, network_of
from tapnet.inference.task_file import with_network


@dataclass(frozen=True)
class TaskPredictor(Predictor):
    """Embeds with the network, then scores with the task."""

    task: Task
    network: EmbeddingModel
    _rejections: dict[float, Rejection] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def open(cls, task: Task, network: str | None = None, device: str = "cpu") -> Self:
        """Return the predictor of a task; its network is found by the name in the task, or given if it moved.

        Raise UserError if the network is missing or another one, or if the task was changed after it was fitted.
        """
        model = network_of(task, network, device)
        return cls(with_network(task, model), model)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.task.classes

    @property
    def preprocessing(self) -> Preprocessing:
        return self.network.image_preprocessing

    @cached_property
    def hashes(self) -> frozenset[str]:
        return frozenset(self.task.examples.hashes)

    def probabilities(self, pixels: Sequence[NDArray[np.uint8]]) -> NDArray[np.floating]:
        return self.task.probabilities(self.network.embed(pixels))

    def answers(
        self, pixels: Sequence[NDArray[np.uint8]], reject: Reject = 0.0, lose: float = LOSE
    ) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
        return self.answer_features(self.network.embed(pixels), reject, lose)

    def answer_features(
        self, features: NDArray[np.float32], reject: Reject = 0.0, lose: float = LOSE
    ) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
        """Return probabilities (n, way) and whether each image is rejected, from features (n, dim)."""
        rows = self.task.probabilities(features)
        if reject == AUTO:
            return rows, self._rejection(lose).rejected(features)
        return rows, rows.max(axis=1) < float(reject)

    def check_rejection(self, lose: float) -> None:
        self._rejection(lose)

    def _rejection(self, lose: float) -> Rejection:
        if lose not in self._rejections:
            self._rejections[lose] = fit_rejection(self.task, self.network, lose)
        return self._rejections[lose]

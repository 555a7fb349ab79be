"""The accuracy of a task on its own examples: one of every class is left out at a time, and the head is fitted anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from scipy.stats import binomtest

from tapnet.inference.adaptation import held_out_logits
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.task import Task

ROUNDS = 20  # at most; each leaves one image of every class out


@dataclass(frozen=True)
class LeaveOneOut:
    """How many of the examples that were left out were classified correctly."""

    hits: int
    total: int
    pairs: tuple[tuple[int, int], ...] = field(default=(), repr=False, compare=False)  # (true, predicted) labels

    @property
    def accuracy(self) -> float:
        return self.hits / self.total

    @property
    def interval(self) -> tuple[float, float]:
        """The 95% interval of Wilson."""
        found = binomtest(self.hits, self.total).proportion_ci(method="wilson")
        return float(found.low), float(found.high)


def leave_one_out(
    task: Task, model: EmbeddingModel, progress: Callable[[int, int], None] | None = None, method: str | None = None
) -> LeaveOneOut | None:
    """Return how many examples a head fitted without them gets right; `None` where a class has one image only.

    One image of every class is left out at a time, so that all classes lose as much; copies of an image count once.
    `method` is another one than the task's, with its default options.
    """
    options = task.options if method is None else {}
    held = held_out_logits(task.examples, model, method or task.method, options, ROUNDS, progress)
    if held is None:
        return None
    logits, answers = held
    pairs = tuple(zip(answers.tolist(), logits.argmax(axis=1).tolist(), strict=True))
    return LeaveOneOut(sum(truth == guess for truth, guess in pairs), len(pairs), pairs)

"""Requests answered together: what arrives while others are being answered waits, then goes through as one batch.

A thread is woken, the store is asked and the network is run once per batch instead of once per request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")

BATCHES = 2  # at a time: one reads images while the other is with the network
SECOND_BYTES = 100_000  # that have to wait for a second batch to start beside one: less is cheaper in one after it
MOST_REQUESTS, MOST_BYTES = 32, 400_000  # of one batch; a larger request goes alone, beside the batches


@dataclass(frozen=True)
class _Waiting(Generic[Question, Answer]):
    question: Question
    size: int
    answer: asyncio.Future[Answer]


class Gatherer(Generic[Question, Answer]):
    """Collects questions and has them answered in batches; everything but `answer` runs in the event loop."""

    def __init__(self, pool: Executor, answer: Callable[[list[Question]], Sequence[Answer | Exception]]) -> None:
        self._pool, self._answer = pool, answer
        self._waiting: deque[_Waiting[Question, Answer]] = deque()
        self._running = 0

    async def ask(self, question: Question, size: int) -> Answer:
        """Return the answer to one question of so many bytes; raise the exception that stands in its place."""
        waiting = _Waiting[Question, Answer](question, size, asyncio.get_running_loop().create_future())
        if size > MOST_BYTES:
            self._run([waiting])
        else:
            self._waiting.append(waiting)
            self._start()
        return await waiting.answer

    def _start(self) -> None:
        while self._waiting and self._has_room():
            self._running += 1
            self._run(self._take()).add_done_callback(self._finish)

    def _has_room(self) -> bool:
        """Return whether a batch may start: the only one, or one of many bytes beside others."""
        if not self._running:
            return True
        return self._running < BATCHES and sum(each.size for each in self._waiting) >= SECOND_BYTES

    def _finish(self, _: object) -> None:
        self._running -= 1
        self._start()

    def _take(self) -> list[_Waiting[Question, Answer]]:
        batch = [self._waiting.popleft()]
        size = batch[0].size
        while self._waiting and len(batch) < MOST_REQUESTS and size + self._waiting[0].size <= MOST_BYTES:
            batch.append(self._waiting.popleft())
            size += batch[-1].size
        return batch

    def _run(self, batch: list[_Waiting[Question, Answer]]) -> asyncio.Future[Sequence[Answer | Exception]]:
        questions = [each.question for each in batch]
        done = asyncio.get_running_loop().run_in_executor(self._pool, self._answer, questions)
        done.add_done_callback(partial(_deliver, batch))
        return done


def _deliver(batch: list[_Waiting[Question, Answer]], done: asyncio.Future[Sequence[Answer | Exception]]) -> None:
    failure = done.exception()
    answers = [failure] * len(batch) if failure else done.result()
    for waiting, answer in zip(batch, answers, strict=True):
        if waiting.answer.done():  # the client is gone
            continue
        if isinstance(answer, BaseException):
            waiting.answer.set_exception(answer)
        else:
            waiting.answer.set_result(answer)

"""Requests answered together: what arrives while others are being answered waits, then goes through as one batch.

A thread is woken, the store is asked and the network is run once per batch instead of once per request.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

BATCHES = 2  # at a time: one reads images while the other is with the network
SECOND_BYTES = 100_000  # that have to wait for a second batch to start beside one: less is cheaper in one after it
MOST_REQUESTS, MOST_BYTES = 32, 400_000  # of one batch; a larger request goes alone, beside the batches


class _Waiting(NamedTuple):
    question: Any
    size: int
    answer: asyncio.Future[Any]


class Batcher:
    """Collects questions and has them answered in batches; everything but `answer` runs in the event loop."""

    def __init__(self, pool: Executor, answer: Callable[[list[Any]], Sequence[Any]]) -> None:
        self._pool, self._answer = pool, answer
        self._waiting: deque[_Waiting] = deque()
        self._running: set[asyncio.Task[None]] = set()

    async def ask(self, question: Any, size: int) -> Any:
        """Return the answer to one question of so many bytes; raise the exception that stands in its place."""
        waiting = _Waiting(question, size, asyncio.get_running_loop().create_future())
        if size > MOST_BYTES:
            await self._run([waiting])
        else:
            self._waiting.append(waiting)
            self._start()
        return await waiting.answer

    def _start(self) -> None:
        """Start a batch if there is none, or if many bytes wait beside the only one."""
        while self._waiting:
            many = sum(waiting.size for waiting in self._waiting) >= SECOND_BYTES
            if len(self._running) >= (BATCHES if many else 1):
                return
            batch = [self._waiting.popleft()]
            left = MOST_BYTES - batch[0].size
            while self._waiting and len(batch) < MOST_REQUESTS and self._waiting[0].size <= left:
                batch.append(self._waiting.popleft())
                left -= batch[-1].size
            running = asyncio.ensure_future(self._run(batch))
            self._running.add(running)
            running.add_done_callback(self._finish)

    def _finish(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        self._start()

    async def _run(self, batch: Sequence[_Waiting]) -> None:
        questions = [waiting.question for waiting in batch]
        answers: Sequence[Any]
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._pool, self._answer, questions)
        except Exception as error:
            answers = [error] * len(batch)
        for waiting, answer in zip(batch, answers, strict=True):
            if waiting.answer.done():  # the client is gone
                continue
            if isinstance(answer, Exception):
                waiting.answer.set_exception(answer)
            else:
                waiting.answer.set_result(answer)

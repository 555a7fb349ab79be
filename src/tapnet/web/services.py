"""What the routers share: the store, the engine and the settings of one server."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import Annotated

from fastapi import Depends, Path, Request

from tapnet.web.answering import Answer, Question, answer_questions
from tapnet.web.engine import Engine
from tapnet.web.gathering import Gatherer
from tapnet.web.metrics import Metrics
from tapnet.web.settings import Settings
from tapnet.web.store import Store


@dataclass(frozen=True)
class Services:
    """One server's parts."""

    settings: Settings
    store: Store
    engine: Engine
    metrics: Metrics

    @cached_property
    def _gatherer(self) -> Gatherer[Question, Answer]:
        return Gatherer(self.engine.pool, partial(answer_questions, self.engine))

    async def predict(self, question: Question) -> Answer:
        """Return the predictions for a request, made together with those for others."""
        with self.engine.admitted():
            return await self._gatherer.ask(question, len(question.upload.body))


async def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Parts = Annotated[Services, Depends(services_of)]
Id = Annotated[str, Path(pattern="^[0-9a-f]{1,32}$", examples=["9f86d081884c7d65"])]

"""What the routers share: the store, the engine and the settings of one server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Path, Request

from tapnet.web.engine import Engine
from tapnet.web.metrics import Metrics
from tapnet.web.settings import Settings
from tapnet.web.store import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Services:
    """One server's parts."""

    settings: Settings
    store: Store
    engine: Engine
    metrics: Metrics

    async def stored(self, call: Callable[[], T]) -> T:
        """Return what a call to the store returns, made in a thread."""
        return await asyncio.to_thread(call)


async def services_of(request: Request) -> Services:
    services: Services = request.app.state.services
    return services


Parts = Annotated[Services, Depends(services_of)]
Id = Annotated[str, Path(pattern="^[0-9a-f]{1,32}$", examples=["9f86d081884c7d65"])]

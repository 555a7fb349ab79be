"""The application: everything put together. `create_app` for tests and embedding, `from_environment` for workers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import to_thread
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.staticfiles import StaticFiles
from starlette.middleware import Middleware

from tapnet import __version__
from tapnet.web import answer_routes, file_routes, server_routes, task_routes
from tapnet.web.database import Database
from tapnet.web.engine import Engine
from tapnet.web.metrics import CountRequests, Metrics
from tapnet.web.problems import ProblemBody, describe_problems, install_handlers
from tapnet.web.security import Gate
from tapnet.web.services import Services
from tapnet.web.settings import Settings
from tapnet.web.store import Store

EVERYWHERE = describe_problems(400, 401, 403, 404, 405, 408, 413, 421, 422, 429, 500, 503)
DESCRIPTION = (
    "Teach a classifier of images by a few examples, and ask it. Errors are `application/problem+json` with one "
    "sentence in `detail`."
)


def create_app(settings: Settings) -> FastAPI:
    """Return the application; its store is opened now, so that a wrong address is an error at once."""
    store, metrics = Store(Database(settings.database), settings.limits), Metrics()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        to_thread.current_default_thread_limiter().total_tokens = settings.threads  # that wait for the store
        engine = Engine(settings, store)
        app.state.services = Services(settings, store, engine, metrics)
        await engine.run(lambda: engine.model("drawings"))
        yield
        engine.close()
        store.database.close()

    app = FastAPI(
        title="tapnet",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        responses=EVERYWHERE,
        middleware=[Middleware(CountRequests, metrics=metrics), Middleware(Gate, settings=settings)],
    )
    install_handlers(app)
    routers = answer_routes.router, file_routes.router, task_routes.router, server_routes.router, server_routes.pages
    for router in routers:
        app.include_router(router)
    app.mount("/static", StaticFiles(directory=str(server_routes.STATIC)), name="static")
    app.openapi_schema = _description(app, settings)
    return app


def from_environment() -> FastAPI:
    """Return the application of a worker process."""
    return create_app(Settings.from_environment())


def _description(app: FastAPI, settings: Settings) -> dict[str, object]:
    described = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    schemas = described["components"]["schemas"]
    schemas["ProblemBody"] = ProblemBody.model_json_schema()
    if settings.token is not None:
        described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"token": []}]
    return described

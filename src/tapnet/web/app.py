"""The application: everything put together, and the routes of the server itself: health, metrics, the page, logging in.

`create_app` is for tests and embedding, `from_environment` for worker processes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from importlib.resources import files
from typing import Annotated, Any
from urllib.parse import parse_qs

from anyio import to_thread
from fastapi import APIRouter, FastAPI, Query, Request, Response
from fastapi.openapi.utils import get_openapi
from fastapi.responses import FileResponse, RedirectResponse
from fastapi.staticfiles import StaticFiles
from starlette.middleware import Middleware

from tapnet import __version__
from tapnet.data.preprocessing import readable_formats
from tapnet.web import answer_routes, metrics, task_routes
from tapnet.web.database import Database
from tapnet.web.engine import Engine, EngineDep
from tapnet.web.problems import Problem, ProblemBody, describe_problems, install_handlers
from tapnet.web.security import COOKIE, Gate, TokenCheck, client_of
from tapnet.web.settings import Settings
from tapnet.web.store import Store

STATIC = files("tapnet.web") / "static"
DESCRIPTION = "Teach a classifier of images by a few examples, and ask it. Errors are `application/problem+json`."
PAGES = {"/": "index.html", "/login": "login.html", "/favicon.ico": "icon.svg"}
server = APIRouter()


def create_app(settings: Settings) -> FastAPI:
    """Return the application; its store is opened now, so that a wrong address is an error at once."""
    store = Store(Database(settings.database), settings.limits)
    token = TokenCheck(settings.token) if settings.token else None

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        to_thread.current_default_thread_limiter().total_tokens = settings.threads  # that wait for the store
        app.state.engine, app.state.token = (engine := Engine(settings, store)), token
        await engine.run(engine.model, "drawings")
        yield
        engine.pool.shutdown()  # what was accepted is finished
        store.database.close()

    app = FastAPI(
        title="tapnet",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        openapi_url="/v1/openapi.json",
        responses=describe_problems(400, 401, 403, 404, 405, 409, 413, 415, 421, 422, 429, 431, 500, 503),
        middleware=[Middleware(Gate, settings=settings, token=token)],
    )
    install_handlers(app)
    for router in (answer_routes.router, task_routes.router, server):
        app.include_router(router)
    for method, path, name, status in task_routes.STORE_ROUTES:
        app.add_api_route(f"/v1/tasks{path}", getattr(store, name), methods=[method], status_code=status)
    for path, name in PAGES.items():
        app.add_route(path, partial(_page, name=name))
    app.mount("/static", StaticFiles(directory=str(STATIC)), name="static")
    described = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
    described["components"]["schemas"]["ProblemBody"] = ProblemBody.model_json_schema()
    if token is not None:
        described["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        described["security"] = [{"token": []}]
    app.openapi_schema = described
    return app


def from_environment() -> FastAPI:
    """Return the application of a worker process."""
    return create_app(Settings.from_environment())


@server.get("/v1/health")
async def health() -> dict[str, str]:
    """Say that the server runs."""
    return {"status": "ok"}


@server.get("/v1/ready")
def ready(engine: EngineDep) -> dict[str, str]:
    """Say whether the server can answer: its store opens, and requests do not pile up."""
    if engine.waiting >= engine.settings.limits.queue:
        raise Problem(503, "Too many requests wait.", retry_after=1)
    engine.store.list_tasks(limit=1)
    return {"status": "ready"}


@server.get("/v1/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def show_metrics(engine: EngineDep) -> Response:
    """Get counters in the text format of Prometheus."""
    metrics.WAITING.set(engine.waiting)
    return Response(metrics.as_text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@server.get("/v1/about")
async def about(engine: EngineDep) -> dict[str, Any]:
    """Get the version, networks, image formats and limits of the server."""
    limits = asdict(engine.settings.limits)
    return {"version": __version__, "networks": engine.networks, "formats": readable_formats(), "limits": limits}


@server.get("/v1/drawing", response_class=Response, responses={200: {"content": {"image/png": {}}}})
def drawing(name: Annotated[str, Query(max_length=100)] = "") -> Response:
    """Get one of the bundled drawings at random, as a PNG file: of the thing named, or of any."""
    return Response(task_routes.random_drawing(name), media_type="image/png")


async def _page(_: Request, name: str) -> Response:
    return FileResponse(str(STATIC / name))


@server.post("/login", include_in_schema=False)
async def login(request: Request) -> Response:
    """Set the cookie of somebody who knows the token, or show the form again."""
    form, token = parse_qs((await request.body()).decode("utf-8", "replace")), request.app.state.token
    if token is None or not token.accepts(form.get("token", [""])[0], client_of(request.scope)):
        return RedirectResponse("/login?wrong", 303)
    response = RedirectResponse("/", 303)
    secure = request.url.scheme == "https"
    response.set_cookie(COOKIE, token.session, httponly=True, samesite="strict", secure=secure)
    return response

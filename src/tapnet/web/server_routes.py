"""The server itself: health, readiness, metrics, what it offers, and logging in."""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import FileResponse, RedirectResponse

from tapnet import __version__
from tapnet.data.preprocessing import readable_formats
from tapnet.web.bodies import About, Status
from tapnet.web.example import random_drawing
from tapnet.web.problems import Problem
from tapnet.web.security import COOKIE, is_token, session_of
from tapnet.web.services import Parts

STATIC = files("tapnet.web") / "static"
router = APIRouter(prefix="/v1", tags=["server"])
pages = APIRouter(include_in_schema=False)


@router.get("/health")
async def health() -> Status:
    """Say that the server runs."""
    return Status(status="ok")


@router.get("/ready")
def ready(parts: Parts) -> Status:
    """Say whether the server can answer: its store opens, and requests do not pile up."""
    if parts.engine.waiting >= parts.settings.limits.queue:
        raise Problem(503, "Too many requests wait.", retry_after=1)
    parts.store.check()
    return Status(status="ready")


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(parts: Parts) -> Response:
    """Get counters in the text format of Prometheus."""
    parts.metrics.waiting.set(parts.engine.waiting)
    return Response(parts.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/about")
async def about(parts: Parts) -> About:
    """Get the version, networks, image formats and limits of the server."""
    return About(
        version=__version__,
        networks=parts.engine.networks,
        formats=list(readable_formats()),
        limits=parts.settings.limits,
    )


@router.get("/drawing", response_class=Response, responses={200: {"content": {"image/png": {}}}})
def drawing(name: Annotated[str, Query(max_length=100)] = "") -> Response:
    """Get one of the bundled drawings at random, as a PNG file: of the thing named, or of any."""
    return Response(random_drawing(name), media_type="image/png")


@pages.get("/")
async def page() -> FileResponse:
    return FileResponse(str(STATIC / "index.html"))


@pages.get("/favicon.ico")
async def icon() -> FileResponse:
    return FileResponse(str(STATIC / "icon.svg"))


@pages.get("/login")
async def login_form() -> FileResponse:
    return FileResponse(str(STATIC / "login.html"))


@pages.post("/login")
async def login(request: Request, parts: Parts) -> Response:
    """Set the cookie of somebody who knows the token, or show the form again."""
    form = parse_qs((await request.body()).decode("utf-8", "replace"))
    token = parts.settings.token
    if token is not None and is_token(form.get("token", [""])[0], parts.settings):
        response: Response = RedirectResponse("/", 303)
        secure = request.url.scheme == "https"
        response.set_cookie(COOKIE, session_of(token), httponly=True, samesite="strict", secure=secure)
        return response
    return RedirectResponse("/login?wrong", 303)

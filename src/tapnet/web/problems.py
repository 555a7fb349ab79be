"""Errors as `application/problem+json` (RFC 9457): one status, one clear sentence."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from sqlalchemy import exc
from starlette.exceptions import HTTPException

from tapnet.errors import UserError

MEDIA_TYPE = "application/problem+json"
log = logging.getLogger("tapnet.web")


class ProblemBody(BaseModel):
    """What an error says."""

    type: str = "about:blank"
    title: str = Field(examples=["Not Found"])
    status: int = Field(examples=[404])
    detail: str = Field(examples=["There is no task 'a1b2'."])


class Problem(Exception):
    """An answer other than success: the status, a sentence, and perhaps when to try again."""

    def __init__(self, status: int, detail: str, retry_after: int | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.retry_after = status, detail, retry_after


def problem_response(
    status: int, detail: str, retry_after: int | None = None, headers: dict[str, str] | None = None
) -> JSONResponse:
    """Return the error as a response."""
    headers = dict(headers or {})
    if retry_after is not None:
        headers["Retry-After"] = str(retry_after)
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    return JSONResponse(body, status, headers, MEDIA_TYPE)


def describe_problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI says of these errors, for the argument `responses` of a router."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def install_handlers(app: FastAPI) -> None:
    """Let the application answer every exception by a problem."""

    async def problem(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Problem)
        return problem_response(error.status, error.detail, error.retry_after)

    async def user_error(_: Request, error: Exception) -> JSONResponse:
        return problem_response(422, str(error))

    async def invalid(_: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, RequestValidationError)
        return problem_response(422, _sentence(error))

    async def http_error(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, HTTPException)
        detail = f"There is nothing at {request.url.path}." if error.status_code == 404 else f"{error.detail}."
        return problem_response(error.status_code, detail, headers=dict(error.headers or {}))

    async def unexpected(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return problem_response(500, "The server made a mistake; its log says more.")

    async def no_store(request: Request, error: Exception) -> JSONResponse:
        log.error("%s %s: the store does not answer", request.method, request.url.path, exc_info=error)
        return problem_response(503, "The store does not answer: try again.", retry_after=5)

    app.add_exception_handler(Problem, problem)
    for kind in (exc.OperationalError, exc.TimeoutError):  # locked or gone; all connections taken
        app.add_exception_handler(kind, no_store)
    app.add_exception_handler(UserError, user_error)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(Exception, unexpected)


def _sentence(error: RequestValidationError) -> str:
    """Return what is wrong with the first wrong field."""
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"] if part not in ("body", "query", "path"))
    message = str(first["msg"]).removeprefix("Value error, ")
    return f"{place}: {message}." if place else f"{message}."

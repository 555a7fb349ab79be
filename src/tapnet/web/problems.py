"""Errors as `application/problem+json` (RFC 9457): one status, one clear sentence."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, ValidationError
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


class Problem(HTTPException):
    """An answer other than success: the status, a sentence, and perhaps when to try again."""

    def __init__(
        self, status: int, detail: str, retry_after: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        retry = {} if retry_after is None else {"Retry-After": str(retry_after)}
        super().__init__(status, detail, retry | dict(headers or {}))

    def response(self) -> JSONResponse:
        """Return the error as it is sent."""
        title = HTTPStatus(self.status_code).phrase
        body = ProblemBody(title=title, status=self.status_code, detail=self.detail).model_dump()
        return JSONResponse(body, self.status_code, self.headers, MEDIA_TYPE)


def missing(what: str, name: str) -> Problem:
    """Return the problem that there is no task, class or example of that id."""
    return Problem(404, f"There is no {what} {name!r}.")


def first_fault(error: RequestValidationError | ValidationError) -> str:
    """Return what is wrong with the first invalid value, as a sentence."""
    return str(error.errors()[0]["msg"]).removeprefix("Value error, ") + "."


def describe_problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return what OpenAPI says of these errors, for the argument `responses` of an application."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemBody"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def install_handlers(app: FastAPI) -> None:
    """Let the application answer every exception by a problem."""

    async def answer(request: Request, error: Exception) -> JSONResponse:
        problem = _as_problem(request, error)
        if problem.status_code in (500, 503) and problem is not error:
            log.error("%s %s: %s", request.method, request.url.path, problem.detail, exc_info=error)
        return problem.response()

    for kind in (UserError, RequestValidationError, HTTPException, exc.OperationalError, exc.TimeoutError, Exception):
        app.add_exception_handler(kind, answer)


def _as_problem(request: Request, error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case UserError():
            return Problem(422, str(error))
        case RequestValidationError():
            where, *fields = map(str, error.errors()[0]["loc"])
            if where == "path":
                return missing(fields[0].removesuffix("_id"), error.errors()[0]["input"])
            return Problem(422, ": ".join(filter(None, (".".join(fields), first_fault(error)))))
        case HTTPException(status_code=404):
            return Problem(404, f"There is nothing at {request.url.path}.")
        case HTTPException():
            return Problem(error.status_code, f"{error.detail}.", headers=error.headers)
        case exc.OperationalError() | exc.TimeoutError():  # locked or gone; all connections taken
            return Problem(503, "The store does not answer: try again.", retry_after=5)
        case _:
            return Problem(500, "The server made a mistake; its log says more.")

"""Predictions for many requests at once: each is read and ranked by itself, the network sees all images together."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from tapnet.data.preprocessing import Pixels
from tapnet.inference.predictor import UNKNOWN, Reject, rank_classes
from tapnet.web.engine import Engine, Fitted
from tapnet.web.uploads import Upload

Group = TypeVar("Group", bound=Hashable)
Value = TypeVar("Value")
Result = TypeVar("Result")
Row = NDArray[np.floating]


@dataclass(frozen=True)
class Question:
    """A request for predictions."""

    task: str
    upload: Upload
    top: int
    reject: Reject


@dataclass(frozen=True)
class Answer:
    """What is sent back: `Predictions` as JSON, and of how many images."""

    content: bytes
    images: int


@dataclass(frozen=True)
class _ReadQuestion:
    question: Question
    fitted: Fitted
    pixels: list[Pixels]


def answer_questions(engine: Engine, questions: Sequence[Question]) -> list[Answer | Exception]:
    """Return the answer to each question, or why there is none: one bad image does not spoil other requests."""
    fitted = cache(engine.fitted)  # the store is asked once for each task
    found: list[Answer | Exception | _ReadQuestion] = []
    for question in questions:
        try:
            found.append(_read(engine, question, fitted))
        except Exception as error:
            found.append(error)
    read = [each for each in found if isinstance(each, _ReadQuestion)]
    answers = iter(_answer(read))
    return [next(answers) if isinstance(each, _ReadQuestion) else each for each in found]


def _read(engine: Engine, question: Question, fitted: Callable[[str], Fitted]) -> _ReadQuestion:
    task = fitted(question.task)
    task.predictor.check_options(reject=question.reject)
    images = question.upload.images(engine.settings.limits)
    return _ReadQuestion(question, task, [each.pixels for each in engine.read(images, task.model)])


def _answer(read: Sequence[_ReadQuestion]) -> list[Answer]:
    models = {each.fitted.model.name: each.fitted.model for each in read}
    predictors = {each.question.task: each.fitted.predictor for each in read}

    def embed(network: str, pixels: list[Pixels]) -> Iterable[Row]:
        return models[network].embed(pixels)

    def classify(group: tuple[str, Reject], rows: list[Row]) -> Iterable[tuple[Row, np.bool_]]:
        task, reject = group
        return zip(*predictors[task].answer_features(np.stack(rows), reject), strict=True)

    features = _grouped([each.fitted.model.name for each in read], [each.pixels for each in read], embed)
    answers = _grouped([(each.question.task, each.question.reject) for each in read], features, classify)
    return [_as_json(*pair) for pair in zip(read, answers, strict=True)]


def _grouped(
    groups: Sequence[Group],
    values: Sequence[Sequence[Value]],
    function: Callable[[Group, list[Value]], Iterable[Result]],
) -> list[list[Result]]:
    """Return the function's results for the values of each member; it is called once with all values of a group."""
    found: dict[int, list[Result]] = {}
    for group in dict.fromkeys(groups):
        members = [number for number, name in enumerate(groups) if name == group]
        results = iter(function(group, [value for number in members for value in values[number]]))
        found |= {number: list(islice(results, len(values[number]))) for number in members}
    return [found[number] for number in range(len(groups))]


def _as_json(read: _ReadQuestion, answers: Sequence[tuple[Row, np.bool_]]) -> Answer:
    rows, rejected = zip(*answers, strict=True)
    ranked = rank_classes(np.stack(rows), read.fitted.task.classes, read.question.top)
    body = {"predictions": [prediction_body(*each) for each in zip(ranked, map(bool, rejected), strict=True)]}
    return Answer(to_json(body), len(answers))


def prediction_body(ranked: Sequence[tuple[str, float]], rejected: bool) -> dict[str, Any]:
    """Return a `PredictionBody` as plain values."""
    best, probability = ranked[0]
    return {
        "label": UNKNOWN if rejected else best,
        "rejected": rejected,
        "probability": probability,
        "ranked": [{"label": label, "probability": value} for label, value in ranked],
    }

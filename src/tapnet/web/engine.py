"""Everything that takes a network: embedding uploads, and answering by a task. Called from a pool of threads."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, partial
from itertools import groupby
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
from fastapi import Depends, Request
from numpy.typing import NDArray
from pydantic_core import to_json

from tapnet.data.preprocessing import Pixels, TooLarge, Unreadable, image_size
from tapnet.errors import UserError
from tapnet.inference import choose_network, fit_task, load_network
from tapnet.inference.images import Example, read_images
from tapnet.inference.model_selection import leave_one_out
from tapnet.inference.networks import EmbeddingModel
from tapnet.inference.predictor import UNKNOWN, Reject, TaskPredictor, rank_classes
from tapnet.inference.scoring import Confusion
from tapnet.inference.task import Examples
from tapnet.paths import bundled_checkpoints
from tapnet.web import metrics
from tapnet.web.batcher import Batcher
from tapnet.web.bodies import TaskBody, Upload
from tapnet.web.problems import Problem
from tapnet.web.settings import Settings
from tapnet.web.store import NewExample, Store

T = TypeVar("T")
_CACHED = 32  # loaded tasks kept in memory


@dataclass(frozen=True)
class Question:
    """A request for predictions."""

    task: str
    upload: Upload
    top: int
    reject: Reject


@dataclass(frozen=True)
class LoadedTask:
    """A task fitted to its stored examples; `example_ids` are in the order of the task's examples."""

    stored: TaskBody
    predictor: TaskPredictor
    example_ids: tuple[str, ...]

    @cached_property
    def left_out(self) -> Confusion | None:
        return leave_one_out(self.predictor.task, self.predictor.network)


class ReadQuestion(NamedTuple):
    """A question whose task was loaded and whose images were read; `number` is its place among those asked."""

    number: int
    question: Question
    loaded: LoadedTask
    pixels: list[Pixels]

    @property
    def network(self) -> EmbeddingModel:
        return self.loaded.predictor.network


class Engine:
    """The networks of a server, a pool of threads that use them, and the tasks that were loaded last."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings, self.store = settings, store
        self.waiting = 0
        self.pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="request")
        self.batcher = Batcher(self.pool, self.answer)
        self._loaded = lru_cache(_CACHED)(self._fit)
        self._models = cache(partial(load_network, device=settings.device))
        self._network = threading.Lock()  # one thread at a time runs a network, on all cores that it may use

    async def run(self, call: Callable[..., T], *args: Any) -> T:
        """Return what a call returns, made in the pool; raise a problem if too many wait for it."""
        with self.admitted():
            return await asyncio.get_running_loop().run_in_executor(self.pool, call, *args)

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Inside, a request counts as waiting; raise a problem if too many do."""
        if self.waiting >= self.settings.limits.queue:
            raise Problem(503, f"The server is busy with {self.waiting} other requests: try again.", retry_after=1)
        self.waiting += 1
        try:
            yield
        finally:
            self.waiting -= 1

    @property
    def networks(self) -> list[str]:
        """The networks that clients may name; no other name is ever looked up."""
        return [*bundled_checkpoints(), *self.settings.networks]

    def check_network(self, name: str) -> None:
        """Raise UserError unless this is one of `networks`."""
        if name not in self.networks:
            raise UserError(f"This server has the networks {', '.join(self.networks)}, got {name!r}.")

    def model(self, name: str) -> EmbeddingModel:
        """Return a network by a name in `networks`; raise UserError for any other."""
        self.check_network(name)
        return self._models(name)

    def check_method(self, network: str | None, method: str | None, dim: int | None) -> None:
        """Raise UserError if a task of this network cannot be fitted by this method with this projection."""
        if network is None:
            raise UserError("The task has no network yet, on which methods depend: name one, or add examples first.")
        options = {} if dim is None else {"projection_dim": dim}
        most = self.model(network).method_named(method, options).max_projection_dim
        if dim is not None and not 1 <= dim <= most:
            raise UserError(f"Expected `projection_dim` from 1 to {most}, got {dim}.")

    def read(self, images: list[bytes], model: EmbeddingModel, thumbnails: bool = False) -> list[Example]:
        """Return images as the network takes them; raise a problem if one is too large or cannot be read."""
        most = self.settings.limits.pixels
        read = list(read_images(images, model.image_preprocessing, thumbnails, workers=0, most_pixels=most))
        examples = []
        for number, (_, example) in enumerate(read, start=1):
            which = "The image" if len(images) == 1 else f"Image {number}"
            if isinstance(example, TooLarge):
                raise Problem(413, f"{which} has {example.reason}: reduce it.")
            if isinstance(example, Unreadable):
                raise Problem(422, f"{which} cannot be read: {example.reason}.")
            examples.append(example)
        return examples

    def embed(self, model: EmbeddingModel, pixels: list[Pixels]) -> NDArray[np.float32]:
        """Return features (n, *feature_shape), once the network is free."""
        with self._network:
            features = model.embed(pixels)
        metrics.IMAGES.inc(len(pixels))
        return features

    def embed_examples(self, images: list[bytes], network: str | None) -> tuple[EmbeddingModel, list[NewExample]]:
        """Return the network and images ready to be stored; without a name it is chosen by what they look like."""
        if network is None:
            most, sizes = self.settings.limits.pixels, [image_size(image) for image in images]
            fits = [not isinstance(size, Unreadable) and math.prod(size) <= most for size in sizes]
            network = choose_network([image for image, fit in zip(images, fits, strict=True) if fit]).name
        model = self.model(network)
        examples = self.read(images, model, thumbnails=True)
        features = self.embed(model, [example.pixels for example in examples])
        return model, [
            NewExample(example.sha256, row.tobytes(), example.thumbnail)
            for example, row in zip(examples, features, strict=True)
        ]

    def load(self, task_id: str) -> LoadedTask:
        """Return the task fitted to what is stored; kept until the task changes."""
        return self._loaded(task_id, self.store.revision(task_id))

    def _fit(self, task_id: str, _: int) -> LoadedTask:
        stored, features, thumbnails = self.store.task_with_features(task_id)
        full = sorted((one for one in stored.classes if one.examples), key=lambda one: one.name)
        if len(full) < 2:
            raise Problem(409, f"A task answers once 2 classes have an example; this one has {len(full)}.")
        assert stored.network is not None
        model = self.model(stored.network)
        if model.sha256 != stored.network_sha256:
            raise Problem(409, f"The task was taught with another version of the network {stored.network!r}.")
        rows = [(label, example) for label, one in enumerate(full) for example in one.examples]
        shape = model.method.feature_shape
        examples = Examples(
            np.stack([features[example.id].reshape(shape) for _, example in rows]),
            np.array([label for label, _ in rows], np.int64),
            tuple(example.sha256 for _, example in rows),
            tuple(thumbnails[example.id] for _, example in rows),
        )
        projects = stored.projection_dim is not None and model.method_named(stored.method).max_projection_dim > 0
        options = {"projection_dim": stored.projection_dim} if projects else {}
        task = fit_task([one.name for one in full], examples, model, stored.method, options)
        return LoadedTask(stored, TaskPredictor(task, model), tuple(example.id for _, example in rows))

    def answer(self, questions: Sequence[Question]) -> list[bytes | Exception]:
        """Return for each question `Predictions` as JSON, or why not: one bad image does not spoil other requests.

        Each is read and ranked by itself; each network sees the images of all at once, each task their features.
        """
        load = cache(self.load)  # the store is asked once for each task
        answers: dict[int, bytes | Exception] = {}
        read: list[ReadQuestion] = []
        for number, question in enumerate(questions):
            try:
                loaded = load(question.task)
                loaded.predictor.check_options(reject=question.reject)
                images = self.read(question.upload.images(self.settings.limits), loaded.predictor.network)
                read.append(ReadQuestion(number, question, loaded, [image.pixels for image in images]))
            except Exception as error:
                answers[number] = error
        read.sort(key=lambda one: (one.network.name, one.question.task, str(one.question.reject)))
        for _, of_network in groupby(read, lambda one: one.network.name):
            same_network = list(of_network)
            pixels = [image for one in same_network for image in one.pixels]
            features = self.embed(same_network[0].network, pixels)
            for (_, reject), of_task in groupby(same_network, lambda one: (one.question.task, one.question.reject)):
                same_task = list(of_task)
                ends = np.cumsum([len(one.pixels) for one in same_task])
                probabilities, rejected = same_task[0].loaded.predictor.answer_features(features[: ends[-1]], reject)
                features = features[ends[-1] :]
                for one, end in zip(same_task, ends, strict=True):
                    rows = slice(end - len(one.pixels), end)
                    ranked = rank_classes(probabilities[rows], one.loaded.predictor.classes, one.question.top)
                    predictions = map(prediction_body, ranked, map(bool, rejected[rows]))
                    answers[one.number] = to_json({"predictions": list(predictions)})
        return [answers[number] for number in range(len(questions))]


def prediction_body(ranked: Sequence[tuple[str, float]], rejected: bool) -> dict[str, Any]:
    """Return a `PredictionBody` as plain values."""
    best, probability = ranked[0]
    return {
        "label": UNKNOWN if rejected else best,
        "rejected": rejected,
        "probability": probability,
        "ranked": [{"label": label, "probability": value} for label, value in ranked],
    }


async def engine_of(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


EngineDep = Annotated[Engine, Depends(engine_of)]

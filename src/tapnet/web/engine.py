"""Everything that takes a network: embedding uploads, and answering by a task. Called from a pool of threads."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import compress
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tapnet.data.preprocessing import Pixels, TooLarge, Unreadable, image_size
from tapnet.errors import UserError
from tapnet.inference import choose_network, load_network
from tapnet.inference.examples import Examples
from tapnet.inference.explanation import Explanation, explain_features
from tapnet.inference.images import Example, read_images
from tapnet.inference.leave_one_out import LeaveOneOut, leave_one_out
from tapnet.inference.planes import TaskPlanes, task_planes
from tapnet.inference.predictor import Reject
from tapnet.inference.task import Task, fit_task
from tapnet.inference.task_predictor import TaskPredictor
from tapnet.paths import bundled_checkpoints
from tapnet.web.batching import BatchedModel, Batcher
from tapnet.web.problems import Problem
from tapnet.web.records import NewExample, StoredTask
from tapnet.web.settings import Settings
from tapnet.web.store import Store

T = TypeVar("T")
Coordinates = NDArray[np.float64]
_CACHED = 32  # fitted tasks kept in memory


@dataclass(frozen=True)
class Fitted:
    """A task fitted to its stored examples; `example_ids` are in the order of the task's examples."""

    stored: StoredTask
    task: Task
    model: BatchedModel
    example_ids: tuple[str, ...]

    @cached_property
    def planes(self) -> TaskPlanes:
        return task_planes(self.task, self.model)

    @cached_property
    def left_out(self) -> LeaveOneOut | None:
        return leave_one_out(self.task, self.model)

    @cached_property
    def predictor(self) -> TaskPredictor:
        return TaskPredictor(self.task, self.model)

    def explain(self, pixels: Pixels, reject: Reject) -> tuple[Explanation, tuple[Coordinates, Coordinates], bool]:
        """Return why an image is classified as it is, where it lies in the two planes, and whether it is rejected."""
        features = self.model.embed([pixels])
        rejected = bool(self.predictor.answer_features(features, reject)[1][0])
        return explain_features(self.task, self.planes.head, features, pixels), self.planes.locate(features), rejected


class Engine:
    """The networks of a server, a pool of threads that use them, and the tasks that were fitted last."""

    def __init__(self, settings: Settings, store: Store) -> None:
        self.settings, self.store = settings, store
        self.batcher = Batcher()
        self.waiting = 0
        self.pool = ThreadPoolExecutor(settings.threads, thread_name_prefix="request")
        self._fitted: OrderedDict[str, Fitted] = OrderedDict()
        self._lock = threading.Lock()
        self._models: dict[str, BatchedModel] = {}

    async def run(self, call: Callable[[], T]) -> T:
        """Return what a call returns, made in the pool; raise a problem if too many wait for it."""
        with self.admitted():
            return await asyncio.get_running_loop().run_in_executor(self.pool, call)

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

    def close(self) -> None:
        """Finish what was accepted, then stop."""
        self.pool.shutdown()
        self.batcher.close()

    @property
    def networks(self) -> list[str]:
        """The networks that clients may name; no other name is ever looked up."""
        return [*bundled_checkpoints(), *self.settings.networks]

    def model(self, name: str) -> BatchedModel:
        """Return a network by a name in `networks`; raise UserError for any other."""
        if name not in self.networks:
            raise UserError(f"This server has the networks {', '.join(self.networks)}, got {name!r}.")
        with self._lock:
            if name not in self._models:
                self._models[name] = BatchedModel.of(load_network(name, self.settings.device), self.batcher)
            return self._models[name]

    def methods(self, name: str) -> list[str]:
        """Return the methods that a network can be fitted by, its own first."""
        return list(self.model(name).offered_methods(way=2))

    def check_method(self, network: str | None, method: str | None, dim: int | None) -> None:
        """Raise UserError if a task of this network cannot be fitted by this method with this projection."""
        if network is None:
            raise UserError("The task has no network yet, on which methods depend: name one, or add examples first.")
        options = {} if dim is None else {"projection_dim": dim}
        most = self.model(network).method_named(method, options).max_projection_dim
        if dim is not None and not 1 <= dim <= most:
            raise UserError(f"Expected `projection_dim` from 1 to {most}, got {dim}.")

    def read(self, images: list[bytes], model: BatchedModel, thumbnails: bool = False) -> list[Example]:
        """Return images as the network takes them; raise a problem if one is too large or cannot be read."""
        pixels = self.settings.limits.pixels
        read = list(read_images(images, model.image_preprocessing, thumbnails, 0, pixels))  # to the end, to clean up
        return [_readable(example, number, images) for number, (_, example) in enumerate(read)]

    def embed(self, images: list[bytes], network: str | None) -> tuple[BatchedModel, list[NewExample]]:
        """Return images ready to be stored, and the network; without one it is chosen by what they look like.

        Raise a problem if an image is too large or cannot be read.
        """
        model = self.model(network or self._choose(images))
        examples = self.read(images, model, thumbnails=True)
        features = model.embed([example.pixels for example in examples])
        return model, [
            NewExample(example.sha256, row.tobytes(), example.thumbnail)
            for example, row in zip(examples, features, strict=True)
        ]

    def _choose(self, images: list[bytes]) -> str:
        """Return the name of the network for images like these; those that are too large are not decoded."""
        sizes = [image_size(image) for image in images]
        small = [not isinstance(each, Unreadable) and math.prod(each) <= self.settings.limits.pixels for each in sizes]
        return choose_network(list(compress(images, small))).name

    def fitted(self, task_id: str) -> Fitted:
        """Return the task fitted to what is stored; kept until the task changes."""
        revision = self.store.revision(task_id)
        with self._lock:
            found = self._fitted.get(task_id)
        if found is None or found.stored.revision != revision:
            found = self._fit(task_id)
            with self._lock:
                self._fitted[task_id] = found
                self._fitted.move_to_end(task_id)
                while len(self._fitted) > _CACHED:
                    self._fitted.popitem(last=False)
        return found

    def _fit(self, task_id: str) -> Fitted:
        stored, features, thumbnails = self.store.task_with_features(task_id)
        full = sorted((each for each in stored.classes if each.examples), key=lambda each: each.name)
        if len(full) < 2:
            raise Problem(409, f"A task answers once 2 classes have an example; this one has {len(full)}.")
        assert stored.network is not None
        model = self.model(stored.network)
        if model.sha256 != stored.network_sha256:
            raise Problem(409, f"The task was taught with another version of the network {stored.network!r}.")
        rows = [(label, each) for label, one in enumerate(full) for each in one.examples]
        shape = model.method.feature_shape
        examples = Examples(
            np.stack([features[each.id].reshape(shape) for _, each in rows]),
            np.array([label for label, _ in rows], np.int64),
            tuple(each.sha256 for _, each in rows),
            tuple(thumbnails[each.id] for _, each in rows),
        )
        projects = stored.projection_dim is not None and model.method_named(stored.method).max_projection_dim > 0
        options = {"projection_dim": stored.projection_dim} if projects else {}
        task = fit_task([each.name for each in full], examples, model, stored.method, options)
        return Fitted(stored, task, model, tuple(each.id for _, each in rows))


def _readable(example: Example | Unreadable, number: int, images: list[bytes]) -> Example:
    which = "The image" if len(images) == 1 else f"Image {number + 1}"
    if isinstance(example, TooLarge):
        raise Problem(413, f"{which} has {example.reason}: reduce it.")
    if isinstance(example, Unreadable):
        raise Problem(422, f"{which} cannot be read: {example.reason}.")
    return example

"""Batch predictions and sweeps on a Ray cluster: the one at an address, one connected already, or this machine's cores.

One predictor per actor takes the names of a chunk of images and leaves a written part file: each actor reads and
decodes its own images, so no pixels travel between processes. Only where there are GPUs, tasks on any core of the
cluster read and decode for the actors. A bounded number of chunks is under way at a time. In a sweep each run is a
task, resumed from its folder on whatever machine takes it over.
"""

from __future__ import annotations

import logging
import os
import platform
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from tapnet.data.preprocessing import Preprocessing
from tapnet.errors import UserError
from tapnet.inference.predictor import Predictor
from tapnet.jobs import batch
from tapnet.jobs.batch import BatchPrediction, PartFiles, PredictorFiles, ReadImage, WrittenPart
from tapnet.jobs.sources import Chunk, absolute
from tapnet.jobs.sweep import Outcome, can_resume
from tapnet.recipe import Recipe, recipe_from
from tapnet.text import install_hint, one_line

_QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}  # what a user did not ask for
_CONNECT_SECONDS = 10.0
_AHEAD = 2  # chunks that an actor is given at a time: one to predict, one that waits
_RETRIES = 10  # of a chunk or run whose worker died: an image that kills every worker does not keep the cluster busy
_POLL_SECONDS = 2.0
_STOP_SECONDS = 120.0  # for runs to end their episode and save


def import_ray() -> Any:
    """Return Ray; raise UserError if it is not installed."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ModuleNotFoundError as error:
        raise UserError(f"The engine ray needs {error.name}: {install_hint('ray')}.", parameter="engine") from None
    return ray


@contextmanager
def ray_session(address: str | None = None) -> Iterator[Any]:
    """Inside, Ray is connected to the cluster at `address`: host:port, "auto" (this machine's) or "local" (its cores).

    Without an address it is RAY_ADDRESS, else the cluster of this machine, else its cores, as for every Ray program.
    """
    ray = import_ray()
    if ray.is_initialized():
        yield ray
        return
    named = address or os.environ.get("RAY_ADDRESS")
    if named not in (None, "auto", "local"):
        _check_listening(named)
    try:
        with _silent_stderr():
            ray.init(address=address, include_dashboard=False, logging_level=logging.ERROR, log_to_driver=False)
    except Exception as error:  # a bare one, where its processes take too long to start
        here = named in (None, "local")
        problem = "Ray cannot be started on this machine" if here else f"There is no Ray cluster at {named}"
        hint = "" if here else " If it asks for a token, set RAY_AUTH_MODE=token here, too."
        raise UserError(f"{problem}: {one_line(error).rstrip('.')}.{hint}", parameter="address") from None
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_listening(address: str) -> None:
    """Raise UserError unless something listens there: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if "://" in address or not (host and port.isdigit()):
        words = f"Expected auto, local or host:port, got {address}. From outside the cluster, use `ray job submit`."
        raise UserError(words, parameter="address")
    try:
        socket.create_connection((host, int(port)), _CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UserError(f"There is no Ray cluster at {address}: {error}.", parameter="address") from None


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Inside, nothing reaches the terminal: Ray's own processes write there past Python. Errors come as exceptions."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _plain_reason(error: BaseException) -> str:
    """Return what a task on the cluster raised, without Ray's frames around it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return one_line(getattr(error, "cause", None) or error)


def predict_on_ray(
    job: BatchPrediction, address: str | None = None, workers: int | None = None, device: str = "auto"
) -> Iterator[WrittenPart]:
    """Yield each missing part of a batch prediction once it is written, in the order in which they are finished.

    `workers` actors predict, by default one per GPU of the cluster or, if it has none, one per core. A worker that dies
    is replaced and its chunks done again.
    """
    chunks, files = job.missing, job.files
    if not chunks:
        return
    with ray_session(address) as ray:
        total = ray.cluster_resources()
        cpus, gpus = max(1, int(total.get("CPU", 1))), 0 if device == "cpu" else int(total.get("GPU", 0))
        needs = {"num_cpus": 0, "num_gpus": 1} if gpus else {"num_cpus": 1}
        job.parts.create()
        parts = replace(job.parts, folder=absolute(job.parts.folder))  # workers have other working folders
        writer = ray.remote(**needs, max_restarts=-1, max_task_retries=_RETRIES)(_PartWriter)
        shared = ray.put(files)
        inputs: Iterator[Any] = iter(chunks)
        if gpus:
            read, preprocessing = ray.remote(num_cpus=1, max_retries=_RETRIES)(_read), files.open().preprocessing
            inputs = (read.remote(chunk, preprocessing) for chunk in chunks)
        size, ahead = min(workers or gpus or cpus, len(chunks)), _AHEAD + (cpus // gpus if gpus else 0)
        actors = [writer.remote(shared, parts, device if gpus else "cpu") for _ in range(size)]
        running = {actor.__ray_ready__.remote(): actor for actor in actors for _ in range(ahead)}
        del actors  # nothing holds an actor that has no more work: its core is free for one that has lost its machine
        missing = len(chunks)
        try:
            while missing:
                ray.wait(list(running))
                ended, _ = ray.wait(list(running), num_returns=len(running), timeout=0)  # one call for all of them
                for task in ended:
                    actor = running.pop(task)
                    if (images := next(inputs, None)) is not None:
                        running[actor.write.remote(images)] = actor
                    if isinstance(part := ray.get(task), WrittenPart):
                        missing -= 1
                        yield part
        except ray.exceptions.RayError as error:
            raise UserError(f"{_plain_reason(error)} What was written stays; the same command continues.") from None


def _read(chunk: Chunk, preprocessing: Preprocessing) -> list[ReadImage]:
    """Return the images of a chunk, decoded for an actor that has a GPU."""
    return list(batch.read_chunk(chunk, preprocessing))


class _PartWriter:
    """One predictor in a process of its own; predicts chunks, read already or not, and writes their parts."""

    def __init__(self, files: PredictorFiles, parts: PartFiles, device: str) -> None:
        self.files, self.parts, self.device = files, parts, device

    @cached_property
    def predictor(self) -> Predictor:
        return self.files.open(self.device)

    def write(self, images: Chunk | list[ReadImage]) -> WrittenPart:
        read = batch.read_chunk(images, self.predictor.preprocessing) if isinstance(images, Chunk) else images
        return batch.predict_part(read, self.predictor, self.parts)


def train_on_ray(
    recipes: Mapping[str, Recipe],
    out: Path,
    address: str | None = None,
    workers: int | None = None,
    device: str = "auto",
    precision: str = "auto",
    test: bool = False,
    watch: Callable[[], None] = lambda: None,
) -> Iterator[Outcome]:
    """Train the runs on a Ray cluster, each in its folder in `out`, and yield how each ended, as they end.

    `out` has to be a folder that all machines share. A run takes one core, or one GPU where the cluster has any; at
    most `workers` run at a time. `watch` is called every few seconds. When the caller stops, the runs save and end.
    """
    out = out.resolve()
    with ray_session(address) as ray:
        out.mkdir(parents=True, exist_ok=True)
        gpus = 1 if device != "cpu" and ray.cluster_resources().get("GPU") else 0
        task = ray.remote(num_cpus=1, num_gpus=gpus, max_retries=_RETRIES)(_train)
        waiting, running = list(recipes), dict[Any, str]()
        try:
            while waiting or running:
                while waiting and (workers is None or len(running) < workers):
                    name = waiting.pop(0)
                    asked = recipes[name].as_dict(), str(out / name), device, precision, test
                    running[task.options(name=name).remote(*asked)] = name
                ended, _ = ray.wait(list(running), timeout=_POLL_SECONDS)
                for run in ended:
                    name, reason = running.pop(run), ""
                    try:
                        ray.get(run)
                    except ray.exceptions.RayError as error:
                        reason = _plain_reason(error)
                    yield name, reason
                watch()
        finally:
            for run in running:
                ray.cancel(run, force=False)
            if running:
                with suppress(ray.exceptions.RayError):
                    ray.wait(list(running), num_returns=len(running), timeout=_STOP_SECONDS)


def _train(recipe: dict[str, Any], folder: str, device: str, precision: str, test: bool) -> None:
    """Train in a worker; resume if the run was begun, here or elsewhere."""
    from tapnet.training import train

    place = Path(folder)
    if not place.parent.is_dir():
        raise UserError(f"{place.parent} is not there on {platform.node()}: give a folder that all machines share.")
    train(recipe_from(recipe, recipe["name"]), place, device, precision, can_resume(place), test=test)

"""A sweep on Ray: each run is a task, resumed from its folder on whatever machine takes it over."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tapnet.errors import UserError
from tapnet.jobs.ray_session import plain_reason, ray_session
from tapnet.jobs.sweep import Outcome, can_resume
from tapnet.recipe import Recipe, recipe_from
from tapnet.training import train

_RETRIES = 10  # of a run whose worker or machine died; each continues where the run was saved
_POLL_SECONDS = 2.0
_STOP_SECONDS = 120.0  # for runs to end their episode and save


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
                for each in ended:
                    name = running.pop(each)
                    yield Outcome(name, out / name, _reason(ray, each))
                watch()
        finally:
            _stop(ray, list(running))


def _train(recipe: dict[str, Any], folder: str, device: str, precision: str, test: bool) -> None:
    """Train in a worker; resume if the run was begun, here or elsewhere."""
    place = Path(folder)
    if not place.parent.is_dir():
        raise UserError(f"{place.parent} is not there on {platform.node()}: give a folder that all machines share.")
    train(recipe_from(recipe, recipe["name"]), place, device, precision, can_resume(place), test=test)


def _reason(ray: Any, ended: Any) -> str:
    """Return why a run failed; nothing if it did not."""
    try:
        ray.get(ended)
    except ray.exceptions.RayError as error:
        return plain_reason(error)
    return ""


def _stop(ray: Any, running: list[Any]) -> None:
    """Let runs save their state and end."""
    for each in running:
        ray.cancel(each, force=False)
    if running:
        with suppress(ray.exceptions.RayError):
            ray.wait(running, num_returns=len(running), timeout=_STOP_SECONDS)

"""What the training loop adds to the bare step, which is loss and gradient of an episode that is there already.

The loop draws, gathers, converts and augments the next episode in a thread, checks losses and gradients, and takes the
optimizer's step; every so many episodes it validates. The parts are measured by themselves, each beside the bare step.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
from contextlib import closing
from pathlib import Path

import torch
from pairs import Row, Work, compared, seconds

from tapnet.hardware import launched, resolve_precision
from tapnet.recipe import load_recipe
from tapnet.training import Run
from tapnet.training.loop import gradients_are_finite


def rows(recipe: str, pairs: int = 5) -> list[Row]:
    asked = load_recipe(recipe)
    name = f"{recipe}, {asked.backbone.name}"
    try:
        asked.data.images(asked.data.train_split)
    except (FileNotFoundError, ValueError) as error:
        return [Row(f"loop: bare step / step, {name}", None, "at least 0.95", note=f"not run: {error}")]
    cpu = torch.device("cpu")
    precision = resolve_precision("auto", cpu)
    with tempfile.TemporaryDirectory() as folder, launched(cpu, precision) as fabric:
        run = Run(asked, Path(folder) / "run", precision, fabric)
        run.start()
        with closing(run.loader):
            return _rows(run, f"{name}, {run.precision}", pairs)


def _rows(run: Run, name: str, pairs: int) -> list[Row]:
    a, b, ratio = compared(_bare_step(run), run.step, pairs)
    parts = {what: _median(work, pairs) for what, work in _parts(run).items()}
    validation, every = statistics.median(_validation(run) for _ in range(3)), run.recipe.validation.every
    note = ", ".join(f"{what} {taken / a:.2%}" for what, taken in parts.items())
    with_validation = f"validation {validation / a:.1f} bare steps, every {every} episodes"
    return [
        Row(f"loop: bare step / step, {name}", ratio, "at least 0.95", a, b, f"of a bare step: {note}"),
        Row(
            f"loop: bare steps / steps and validation, {name}",
            1 / (1 / ratio + validation / every / a),
            "at least 0.95",
            a,
            b + validation / every,
            with_validation,
        ),
    ]


def _bare_step(run: Run) -> Work:
    episode = run.loader.prepare(0)

    def step() -> None:
        run.method.train()
        half = torch.autocast(run.device.type, torch.bfloat16, enabled=run.precision == "bf16")
        with half:
            loss = run.method.loss(episode).loss
        loss.backward()
        run.optimizer.zero_grad()

    return step


def _parts(run: Run) -> dict[str, Work]:
    """What a step of the loop does besides the bare step."""
    for parameter in run.method.parameters():
        parameter.grad = torch.zeros_like(parameter)
    numbers = itertools.count()  # a new episode each time: one that was read before is in the cache
    return {
        "episode": lambda: run.loader.prepare(next(numbers)),
        "check": lambda: bool(gradients_are_finite(run.method)),
        "optimizer": run.optimizer.step,
    }


def _validation(run: Run) -> float:
    run.step()  # a point of the curve needs one
    return seconds(run.validate)


def _median(work: Work, times: int) -> float:
    return statistics.median(seconds(work) for _ in range(times))

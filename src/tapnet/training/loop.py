"""The training loop: any method, any dataset, one meta-batch of episodes per step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from lightning_fabric import Fabric

from tapnet import hardware
from tapnet.evaluation.calibration import calibrate_checkpoint
from tapnet.evaluation.candidates import class_overlap
from tapnet.hardware import any_rank, keep_freed_memory, launched, raise_together, resolve_device, resolve_precision
from tapnet.paths import BEST, LAST
from tapnet.recipe import Recipe
from tapnet.training.final_evaluation import final_evaluation
from tapnet.training.outcome import Interrupted, stop_requests
from tapnet.training.run import Run
from tapnet.training.run_folder import Point, RunFolder

SAVE_SECONDS = 60.0  # a killed run loses no more than this, if an episode takes less


@dataclass(frozen=True)
class Step:
    """The result of one step, passed to `watch`."""

    episode: int  # training episodes done
    loss: float
    point: Point | None = None  # if the step ended with a validation


def train(
    recipe: Recipe,
    folder: Path,
    device: str = "auto",
    precision: str = "auto",
    resume: bool = False,
    watch: Callable[[Step], None] | None = None,
    save_seconds: float = SAVE_SECONDS,
    fabric: Fabric | None = None,
    started: Callable[[int, list[str]], None] | None = None,
    test: bool = True,
) -> Path:
    """Train by the recipe and return the path of the checkpoint that was best on validation classes.

    `tapnet.training.run_folder` lists the files in the folder; with `resume` the run continues from its newest state as
    if it had never stopped. At the end the checkpoint is evaluated on test classes, unless `test` is false. `started`
    is called once recipe, data and folder have been checked, with the number of episodes done and the networks that it
    learns from, in words; `watch` is called after every step. `fabric` is a launched Lightning Fabric, if several
    processes share the run.
    """
    with ExitStack() as stack:
        place = resolve_device(device)
        if place.type == "cpu":
            keep_freed_memory()
        precision = resolve_precision(precision, place)
        fabric = fabric or stack.enter_context(launched(place, precision))
        _train_to_end(Run(recipe, folder, device, precision, fabric), resume, watch, save_seconds, started)
        if test:
            outcome = final_evaluation(recipe, folder, fabric.device)
            if hardware.rank() == 0:
                RunFolder(folder).update(not_tested=outcome if isinstance(outcome, str) else None)
    return folder / BEST


def _train_to_end(
    run: Run,
    resume: bool,
    watch: Callable[[Step], None] | None,
    save_seconds: float,
    started: Callable[[int, list[str]], None] | None,
) -> None:
    with ExitStack() as stack:
        with raise_together():
            stack.enter_context(run.opened(resume))
        if started:
            started(run.episode, run.lineage.describe())
        _ = run.source.validation_features  # before Ctrl-C waits for the end of an episode
        stop = stack.enter_context(stop_requests())
        while run.episode < run.recipe.training.episodes:
            if any_rank(stop.is_set()):
                run.save()
                raise Interrupted(run.folder.path, run.episode, LAST)
            loss = run.step()
            point = run.validate() if run.validation_is_due else None
            if run.seconds_since_save > save_seconds:
                run.save()
            if watch:
                watch(Step(run.episode, loss, point))
        any_rank(False)  # from here on every process finds the best checkpoint
        if not class_overlap(run.recipe, run.method, run.validation_set, lineage=run.lineage).trained_on:
            calibrate_checkpoint(run.folder.path / BEST, run.validation_set, run.source.validation_features)

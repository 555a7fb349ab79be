"""The training loop: any method, any dataset, one meta-batch of episodes per step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from lightning_fabric import Fabric

from tapnet import distributed
from tapnet.checkpoint import BEST, LAST, Checkpoint, Header, Running, optimizer_tensors, restore_optimizer
from tapnet.data.batches import EpisodeImages
from tapnet.data.episodes import NotEnoughDataError
from tapnet.distributed import all_reduce_sum, any_rank, launched, raise_together
from tapnet.errors import UserError
from tapnet.evaluation.calibration import calibrate_checkpoint
from tapnet.evaluation.evaluator import Evaluator
from tapnet.functional import NonFiniteError
from tapnet.hardware import PRECISIONS, describe, keep_freed_memory, resolve_device, resolve_precision
from tapnet.methods import Method
from tapnet.recipe import Recipe, Training
from tapnet.training.averaging import WeightAverage
from tapnet.training.faults import Diverged, advice, gradients_are_finite, is_sound, save_episode
from tapnet.training.final_evaluation import final_evaluation
from tapnet.training.initialization import init_from
from tapnet.training.interruption import Interrupted, stop_requests
from tapnet.training.outcome import record_outcome
from tapnet.training.provenance import provenance
from tapnet.training.resume import check_resumable
from tapnet.training.run_folder import Point, RunFolder, read_curve
from tapnet.training.schedule import learning_rate, set_rates
from tapnet.training.sources import EpisodeSource, FeatureEpisodes, ImageEpisodes
from tapnet.training.statistics import MeanOfStatistics
from tapnet.training.trajectory import Trajectory, read_trajectory

SAVE_SECONDS = 60.0  # the most that a killed run loses, where an episode takes less
VALIDATION_SEED = 2**32  # its episodes are those of no training seed in common use
_NOTHING = Running()


@dataclass(frozen=True)
class Step:
    """What happened in one step, for whoever watches."""

    episode: int  # training episodes done
    loss: float
    point: Point | None = None  # when the step ended with a validation


def train(
    recipe: Recipe,
    folder: Path,
    device: str = "auto",
    precision: str = "auto",
    resume: bool = False,
    watch: Callable[[Step], None] | None = None,
    save_seconds: float = SAVE_SECONDS,
    fabric: Fabric | None = None,
    started: Callable[[int, str], None] | None = None,
    test: bool = True,
) -> Path:
    """Train by the recipe and return the path of the checkpoint that was best on validation classes.

    The folder receives what `tapnet.training.run_folder` lists; with `resume` the run continues from its newest state
    as if it had never stopped. At the end that checkpoint is evaluated on test classes, unless `test` is false.
    `started` is called once recipe, data and folder are known to be in order, with the episodes done and where the
    weights were initialized from; `watch` is called after every step. `fabric` is a launched Lightning Fabric, where
    several processes share the run.
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
            if distributed.rank() == 0:
                RunFolder(folder).update(not_tested=outcome if isinstance(outcome, str) else None)
    return folder / BEST


def _train_to_end(
    run: Run,
    resume: bool,
    watch: Callable[[Step], None] | None,
    save_seconds: float,
    started: Callable[[int, str], None] | None,
) -> None:
    with ExitStack() as stack:
        with raise_together():
            stack.enter_context(run.opened(resume))
        if started:
            started(run.episode, run.origin)
        _ = run.source.validation_features  # computed before Ctrl-C waits for the end of an episode
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
        any_rank(False)  # from here on the best checkpoint is there for every process
        if not set(run.train_set.names) & set(run.validation_set.names):  # temperatures need classes not trained on
            calibrate_checkpoint(run.folder.path / BEST, run.validation_set, run.source.validation_features)


class Run:
    """A run between two steps: everything that the next one needs."""

    def __init__(self, recipe: Recipe, folder: Path, device: str, precision: str, fabric: Fabric | None = None) -> None:
        self.recipe, self.folder = recipe, RunFolder(folder)
        self.device = fabric.device if fabric else resolve_device(device)
        self.precision = resolve_precision(precision, self.device)
        with raise_together():
            self._gather()
        self.method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.AdamW(self.method.parameters(), lr=recipe.training.learning_rate, fused=True)
        decay = recipe.training.ema_decay
        self._average = None if decay is None else WeightAverage(self.method, decay)
        self._fabric = fabric or Fabric(
            accelerator=self.device.type,
            devices=1,
            precision=PRECISIONS[self.precision],  # type: ignore[arg-type]
        )
        self._module, self._optimizer = self._fabric.setup(self.method, self.optimizer)
        self._module.mark_forward_method("loss")
        self.episode, self._saved_at, self._saved_episode = 0, time.monotonic(), 0
        self.best: dict[str, Any] | None = None
        self.origin = ""
        self._since_point = _NOTHING
        self._points: list[Point] = []
        self._trajectory = Trajectory()

    def _gather(self) -> None:
        """Data, episodes and method, or a refusal of the recipe; nothing here waits for another process."""
        recipe, training, validation = self.recipe, self.recipe.training, self.recipe.validation
        _check_uneven_work(training)
        self.train_set, self.validation_set = (
            recipe.data.images(split) for split in (recipe.data.train_split, validation.split)
        )
        recipe = self.recipe = recipe.with_num_classes(len(self.train_set.class_names))
        self.sampler = self.train_set.sampler(training.episode_spec(recipe.seed))
        try:
            self.validation_set.sampler(validation.episode_spec(VALIDATION_SEED))
        except NotEnoughDataError as error:
            raise NotEnoughDataError(
                f"For validation (validation.way, validation.shot, validation.query), {error}"
            ) from None
        kind: Callable[..., EpisodeSource] = FeatureEpisodes if training.frozen_backbone else ImageEpisodes
        with _seeded(recipe.seed):
            self.source = kind(recipe, self.train_set, self.validation_set, self.device, self.precision)
        self.method = self.source.method

    @property
    def validation_is_due(self) -> bool:
        every, done = self.recipe.validation.every, self.episode
        before = done - self.recipe.training.meta_batch
        return done // every > before // every or done == self.recipe.training.episodes

    @property
    def validated(self) -> Method:
        """The method that validation measures and best.safetensors keeps: with averaged weights, if the recipe asks."""
        return self._average.method if self._average and self.episode else self.method

    @property
    def seconds_since_save(self) -> float:
        return time.monotonic() - self._saved_at

    @contextmanager
    def opened(self, resume: bool) -> Iterator[None]:
        """Hold the folder, fresh or restored, while the run lasts; however the run ends is recorded there."""
        writes, first = distributed.rank() == 0, self.recipe.training.init_from
        if first is not None and not resume:
            self.origin = init_from(self.method, first)
        with self.folder.held() if writes else nullcontext():
            if resume:
                self.restore()
            else:
                self.start()
            with record_outcome(self.folder, lambda: self._saved_episode):
                yield

    def start(self) -> None:
        """A fresh folder; an older run in it is refused."""
        if distributed.rank() == 0:
            self.folder.begin(self.recipe, provenance() | self._metadata())
            self._keep_snapshot()
        self.save()

    def restore(self) -> None:
        """The newest state that the folder holds; the curve is cut back to it."""
        checkpoint = self.folder.newest()
        check_resumable(self.folder.path, checkpoint.header.recipe, self.recipe, checkpoint.header.episode)
        self.folder.check_best()
        if checkpoint.header.data != self._data():
            raise UserError(f"{self.folder.path} was trained on other data than {self.recipe.data.name} holds now.")
        checkpoint.check_weights(self.method)
        self.method.load_state_dict(checkpoint.weights)
        restore_optimizer(self.method, self.optimizer, checkpoint.optimizer)
        if self._average:
            self._average.restore(checkpoint.average)
        header = checkpoint.header
        self.episode, self._since_point, self.origin = header.episode, header.since_point, header.origin
        self.best = header.validation if (self.folder.path / BEST).exists() else None
        self._saved_episode = self.episode
        self._points = [point for point in read_curve(self.folder.path) if point.episode <= self.episode]
        if distributed.rank() == 0:
            self._trajectory = read_trajectory(self.folder.path)
            self._trajectory.cut_after(self.episode)
            self.folder.clear_leftovers()
            self.folder.write_curve(self._points)
            before = self.folder.metadata()
            again = provenance() | self._metadata() | {"episode": self.episode}
            self.folder.update(
                state="running", process=again["process"], resumed=[*before.get("resumed", []), again], ended=None
            )
        if header.recipe != self.recipe:
            self.save()
        if distributed.rank() == 0:
            self.folder.switch_recipe(self.recipe)

    def step(self) -> float:
        """Learn from the next meta-batch; gives its mean loss."""
        training, first = self.recipe.training, self.episode
        set_rates(self.optimizer, training, first)
        mine = range(first + distributed.rank(), first + training.meta_batch, distributed.size())
        statistics = MeanOfStatistics(self.method) if training.meta_batch > 1 else None
        self.method.train()
        losses, hits = {}, 0.0
        for index in mine:
            losses[index], hit = self._learn(index, 1 / len(mine), last=index == mine[-1])
            hits += hit
            if statistics:
                statistics.after_episode()
        self._check_divergence(losses)
        if statistics:
            statistics.keep(training.meta_batch)
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._average:
            self._average.update()
        self.episode += training.meta_batch
        return self._count(sum(losses.values()), hits)

    def _learn(self, index: int, share: float, last: bool) -> tuple[float, float]:
        """Add this share of an episode's gradient; gives its loss and its accuracy."""
        with ExitStack() as stack:
            if not last and distributed.size() > 1:  # gradients meet once a step
                stack.enter_context(self._fabric.no_backward_sync(self._module))
            stack.enter_context(_seeded(self.recipe.seed, index))
            episode = self._images(index)
            try:
                loss, logits = self._module.loss(episode)
            except NonFiniteError:
                self._keep(index, {index: math.nan})
            self._fabric.backward(loss * share)
        return loss.item(), (logits.argmax(dim=-1) == episode.query_labels).double().mean().item()

    def _images(self, index: int) -> EpisodeImages:
        """The images of an episode, augmented; over a frozen backbone their features."""
        generator = torch.Generator().manual_seed(_seed(self.recipe.seed, index))
        return self.source.episode(self.sampler[index], generator)

    def _check_divergence(self, losses: dict[int, float]) -> None:
        """Nothing when all is well; else every process stops, and one with a guilty episode keeps it and says so.

        Gradients are those of all processes: where only they are not finite, the first process speaks.
        """
        guilty = [index for index, loss in losses.items() if not is_sound(loss)]
        if not any_rank(bool(guilty) or not gradients_are_finite(self.method)):
            return
        found = any_rank(bool(guilty))
        with raise_together():
            if guilty or (not found and distributed.rank() == 0):
                self._keep([*guilty, *losses][0], losses)

    def _keep(self, index: int, losses: dict[int, float]) -> NoReturn:
        path = self.folder.path / f"episode-{index}.safetensors"
        seed = _seed(self.recipe.seed, index)
        save_episode(path, self.recipe, index, seed, self._images(index), self.method.state_dict())
        raise Diverged(advice(index, losses[index], self.precision, path))

    def _count(self, loss: float, hits: float) -> float:
        """Add the sums of a step to the running ones; gives the mean loss over the meta-batch of all processes."""
        if distributed.size() > 1:
            loss, hits = all_reduce_sum(torch.tensor([loss, hits], dtype=torch.float64)).tolist()
        since, episodes = self._since_point, self.recipe.training.meta_batch
        self._since_point = Running(since.episodes + episodes, since.loss + loss, since.hits + hits)
        return loss / episodes

    def validate(self) -> Point:
        """Measure on validation classes, keep the best, save the state."""
        settings, method = self.recipe.validation, self.validated
        method.eval()
        features = self.source.validation_features
        result = Evaluator(method, self.validation_set, self.precision, features=features).evaluate(
            settings.episode_spec(VALIDATION_SEED), bootstrap=False
        )
        point = Point(
            episode=self.episode,
            loss=self._since_point.loss / self._since_point.episodes,
            training_accuracy=self._since_point.hits / self._since_point.episodes,
            validation_accuracy=result.accuracy,
            validation_ci95=result.ci95,
            learning_rate=learning_rate(self.recipe.training, self.episode - self.recipe.training.meta_batch),
            diagnostics=method.diagnostics(),
        )
        self._since_point = _NOTHING
        self._points.append(point)
        better = self.best is None or result.accuracy > self.best["accuracy"]
        if better:
            self.best = {"accuracy": result.accuracy, "ci95": result.ci95, "episode": self.episode} | asdict(settings)
        if distributed.rank() == 0:
            self.folder.write_curve(self._points)
            self._keep_snapshot()
            if better:
                Checkpoint(self._header(), self.validated.state_dict()).write(self.folder.path / BEST)
        self.save()
        return point

    def _keep_snapshot(self) -> None:
        self._trajectory.add(self.episode, self.validated.snapshot())
        self._trajectory.write(self.folder.path)

    def save(self) -> None:
        if distributed.rank() == 0:
            average = self._average.tensors() if self._average else {}
            optimizer = optimizer_tensors(self.method, self.optimizer)
            self.folder.save(Checkpoint(self._header(), self.method.state_dict(), optimizer, average))
        self._saved_at, self._saved_episode = time.monotonic(), self.episode

    def _header(self) -> Header:
        return Header(
            recipe=self.recipe,
            image_shape=self.train_set.image_shape,
            episode=self.episode,
            validation=self.best,
            since_point=self._since_point,
            data=self._data(),
            preprocessing=self.train_set.preprocessing.as_dict() if self.train_set.preprocessing else {},
            hardware=describe(self.device, self.precision),
            backbone_digest=self.source.backbone_digest,
            origin=self.origin,
        )

    def _data(self) -> dict[str, str]:
        return {images.split: images.fingerprint for images in (self.train_set, self.validation_set)}

    def _metadata(self) -> dict[str, Any]:
        return {
            "state": "running",
            "seed": self.recipe.seed,
            "data": {"name": self.recipe.data.name} | self._data(),
            "hardware": describe(self.device, self.precision),
            "processes": distributed.size(),
            "origin": self.origin,
        }


def _check_uneven_work(training: Training) -> None:
    if training.meta_batch % distributed.size():
        processes = distributed.size()
        raise UserError(
            f"{processes} processes need training.meta_batch to be a multiple of {processes}, got "
            f"{training.meta_batch}: for instance training.meta_batch={processes}."
        )


def _seed(*key: int) -> int:
    return int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)


@contextmanager
def _seeded(*key: int) -> Iterator[None]:
    """Inside, global randomness (dropout, initialization) follows from the key; outside it is as it was."""
    with torch.random.fork_rng():
        torch.manual_seed(_seed(*key))
        yield

"""A run: the state of training between two steps, in memory and in its folder."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric

from tapnet import hardware
from tapnet.checkpoint import Checkpoint, Header, Lineage, RunningSums
from tapnet.data.episodes import NotEnoughDataError
from tapnet.errors import UserError
from tapnet.evaluation.evaluator import Evaluator
from tapnet.hardware import PRECISIONS, describe, raise_together, resolve_device, resolve_precision
from tapnet.methods import Method
from tapnet.paths import BEST
from tapnet.recipe import Recipe, Training
from tapnet.training.averaging import WeightAverage
from tapnet.training.episode_loader import seeded
from tapnet.training.initialization import init_from
from tapnet.training.learner import Learner
from tapnet.training.outcome import record_outcome
from tapnet.training.provenance import provenance
from tapnet.training.resume import check_resumable
from tapnet.training.run_folder import Point, RunFolder, read_curve
from tapnet.training.schedule import learning_rate
from tapnet.training.sources import EpisodeSource, FeatureEpisodes, ImageEpisodes
from tapnet.training.teachers import load_teachers
from tapnet.training.trajectory import Trajectory, read_trajectory

VALIDATION_SEED = 2**32  # larger than common training seeds, so that episodes differ


class Run:
    """The state of a run between two steps: everything that the next one needs."""

    def __init__(self, recipe: Recipe, folder: Path, device: str, precision: str, fabric: Fabric | None = None) -> None:
        self.recipe, self.folder = recipe, RunFolder(folder)
        self.device = fabric.device if fabric else resolve_device(device)
        self.precision = resolve_precision(precision, self.device)
        with raise_together():
            self._prepare()
        self.method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        decay = recipe.training.ema_decay
        self._average = None if decay is None else WeightAverage(self.method, decay)
        fabric = fabric or Fabric(
            accelerator=self.device.type,
            devices=1,
            precision=PRECISIONS[self.precision],  # type: ignore[arg-type]
        )
        job = self.source, self.sampler, fabric, self.precision, folder
        self.learner = Learner(self.recipe, *job, self._teachers)
        self.optimizer = self.learner.optimizer
        self.episode, self._saved_at, self._saved_episode = 0, time.monotonic(), 0
        self.best: dict[str, Any] | None = None
        self.lineage = Lineage(self._teachers.ancestors if self._teachers else ())
        self._since_point = RunningSums()
        self._points: list[Point] = []
        self._trajectory = Trajectory()

    def _prepare(self) -> None:
        """Load the data and build the method, or raise UserError, without waiting for another process."""
        recipe, training, validation = self.recipe, self.recipe.training, self.recipe.validation
        _check_meta_batch(training)
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
        with seeded(recipe.seed):
            self.source = kind(recipe, self.train_set, self.validation_set, self.device, self.precision)
        self.method = self.source.method
        self._teachers = load_teachers(training, self.train_set.image_shape, self.device) if training.teachers else None

    @property
    def validation_is_due(self) -> bool:
        every, done = self.recipe.validation.every, self.episode
        before = done - self.recipe.training.meta_batch
        return done // every > before // every or done == self.recipe.training.episodes

    @property
    def validated(self) -> Method:
        """The method that is validated and saved as best.safetensors, with averaged weights if they are averaged."""
        return self._average.method if self._average and self.episode else self.method

    @property
    def seconds_since_save(self) -> float:
        return time.monotonic() - self._saved_at

    @contextmanager
    def opened(self, resume: bool) -> Iterator[None]:
        """Lock the folder, start or restore the run, and record in the folder how it ends."""
        writes, first = hardware.rank() == 0, self.recipe.training.init_from
        if first and not resume:
            initial = init_from(self.method, first)
            self.lineage = replace(initial, ancestors=self.lineage.ancestors + initial.ancestors)
        with self.folder.held() if writes else nullcontext():
            if resume:
                self.restore()
            else:
                self.start()
            with record_outcome(self.folder, lambda: self._saved_episode), closing(self.learner.episodes):
                yield

    def start(self) -> None:
        """Write a fresh folder; raise UserError if it holds a run already."""
        if hardware.rank() == 0:
            self.folder.begin(self.recipe, provenance() | self._metadata())
            self._keep_snapshot()
        self.save()

    def restore(self) -> None:
        """Load the newest state in the folder and cut the learning curve back to it."""
        checkpoint = self.folder.newest()
        check_resumable(self.folder.path, checkpoint.header.recipe, self.recipe, checkpoint.header.episode)
        self.folder.check_best()
        if checkpoint.header.data != self._data():
            raise UserError(f"{self.folder.path} was trained on other data than {self.recipe.data.name} has now.")
        if checkpoint.header.lineage.teachers() != self.lineage.teachers():
            raise UserError(
                f"{self.folder.path} was trained with other teachers than {', '.join(self.recipe.training.teachers)} "
                "(training.teachers): restore those, or choose another folder."
            )
        checkpoint.check_weights(self.method)
        self.method.load_state_dict(checkpoint.weights)
        self.learner.restore_optimizer(checkpoint.optimizer)
        if self._average:
            self._average.restore(checkpoint.average)
        header = checkpoint.header
        self.episode, self._since_point = header.episode, header.since_point
        self.lineage = header.lineage
        self.best = header.validation if (self.folder.path / BEST).exists() else None
        self._saved_episode = self.episode
        self._points = [point for point in read_curve(self.folder.path) if point.episode <= self.episode]
        if hardware.rank() == 0:
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
        if hardware.rank() == 0:
            self.folder.switch_recipe(self.recipe)

    def step(self) -> float:
        """Train on the next meta-batch; return its mean loss."""
        loss, accuracy = self.learner.step(self.episode)
        since, episodes = self._since_point, self.recipe.training.meta_batch
        self.episode += episodes
        self._since_point = RunningSums(since.episodes + episodes, since.loss + loss, since.hits + accuracy)
        if self._average:
            self._average.update()
        return loss / episodes

    def validate(self) -> Point:
        """Evaluate on validation classes, save the best checkpoint and the state."""
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
        self._since_point = RunningSums()
        self._points.append(point)
        better = self.best is None or result.accuracy > self.best["accuracy"]
        if better:
            self.best = {"accuracy": result.accuracy, "ci95": result.ci95, "episode": self.episode} | asdict(settings)
        if hardware.rank() == 0:
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
        if hardware.rank() == 0:
            average = self._average.tensors() if self._average else {}
            optimizer = self.learner.optimizer_tensors()
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
            lineage=self.lineage,
        )

    def _data(self) -> dict[str, str]:
        return {images.split: images.fingerprint for images in (self.train_set, self.validation_set)}

    def _metadata(self) -> dict[str, Any]:
        return {
            "state": "running",
            "seed": self.recipe.seed,
            "data": {"name": self.recipe.data.name} | self._data(),
            "hardware": describe(self.device, self.precision),
            "processes": hardware.world_size(),
            "lineage": self.lineage.describe(),
        }


def _check_meta_batch(training: Training) -> None:
    if training.meta_batch % hardware.world_size():
        processes = hardware.world_size()
        raise UserError(
            f"{processes} processes need training.meta_batch to be a multiple of {processes}, got "
            f"{training.meta_batch}: for instance training.meta_batch={processes}."
        )

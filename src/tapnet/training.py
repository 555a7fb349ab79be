"""The training loop: any method, any dataset, one episode a step."""

from __future__ import annotations

import json
import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from lightning_fabric import Fabric
from torch import Tensor
from torch.nn import functional as F

from tapnet.augmentation import AUGMENTATIONS
from tapnet.batches import episode_images
from tapnet.checkpoint import (
    BEST,
    LAST,
    Checkpoint,
    Header,
    Running,
    optimizer_tensors,
    read_checkpoint,
    restore_optimizer,
    write_atomically,
)
from tapnet.datasets import load_dataset
from tapnet.episodes import EpisodeSampler
from tapnet.evaluation import Evaluator
from tapnet.hardware import PRECISIONS, describe, resolve_device, resolve_precision
from tapnet.methods import Method
from tapnet.recipe import Recipe, Training

CURVE = "curve.jsonl"
_NOTHING = Running()
VALIDATION_SEED = 2**32  # its episodes are those of no training seed in common use


@dataclass(frozen=True)
class Point:
    """One point of the learning curve."""

    episode: int  # training episodes done
    loss: float  # mean since the last point
    training_accuracy: float  # on the queries of those episodes
    validation_accuracy: float
    validation_ci95: float
    learning_rate: float
    reference_distance: float | None = None  # smallest between two normalised references


@dataclass(frozen=True)
class Step:
    """What happened in one episode, for whoever watches."""

    episode: int  # training episodes done
    loss: float
    point: Point | None = None  # when the episode ended with a validation


class Interrupted(Exception):
    """The run was told to stop and has saved its state; `folder` holds it."""

    def __init__(self, folder: Path, episode: int) -> None:
        super().__init__(f"Stopped after episode {episode}; {folder / LAST} holds the state.")
        self.folder, self.episode = folder, episode


def train(
    recipe: Recipe,
    folder: Path,
    device: str = "auto",
    precision: str = "auto",
    resume: bool = False,
    watch: Callable[[Step], None] | None = None,
) -> Path:
    """Train by the recipe and give the path of the checkpoint that was best on validation classes.

    The folder receives recipe.yaml, curve.jsonl, best.safetensors and last.safetensors; with `resume` the run goes on
    from last.safetensors as if it had never stopped.
    """
    run = Run(recipe, folder, device, precision)
    if resume:
        run.restore()
    else:
        run.start()
    with _stop_requests() as stop:
        while run.episode < recipe.training.episodes:
            if stop.is_set():
                run.save()
                raise Interrupted(folder, run.episode)
            loss = run.step()
            point = run.validate() if run.validation_is_due else None
            if watch:
                watch(Step(run.episode, loss, point))
    return folder / BEST


class Run:
    """A run between two episodes: everything that the next one needs."""

    def __init__(self, recipe: Recipe, folder: Path, device: str, precision: str) -> None:
        self.recipe, self.folder = recipe, folder
        self.device = resolve_device(device)
        self.precision = resolve_precision(precision, self.device)
        self.train_set, self.validation_set = (
            load_dataset(recipe.data.name, split, recipe.data.root, **recipe.data.options)
            for split in (recipe.data.train_split, recipe.validation.split)
        )
        training, validation = recipe.training, recipe.validation
        self.sampler = EpisodeSampler(
            self.train_set.labels, training.way, training.shot, training.query, seed=recipe.seed
        )
        EpisodeSampler(self.validation_set.labels, validation.way, validation.shot, validation.query)  # or refuse now
        fabric = Fabric(accelerator=self.device.type, devices=1, precision=PRECISIONS[self.precision])  # type: ignore[arg-type]
        with _seeded(recipe.seed):
            self.method = recipe.build(self.train_set.image_shape).to(self.device)
        self.method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.optimizer = torch.optim.AdamW(self.method.parameters(), lr=training.learning_rate, fused=True)
        self._fabric = fabric
        self._module, self._optimizer = fabric.setup(self.method, self.optimizer)
        self._augment = AUGMENTATIONS[training.augmentation]
        self.episode = 0
        self.best: dict[str, Any] | None = None
        self._since_point = _NOTHING

    @property
    def validation_is_due(self) -> bool:
        return self.episode % self.recipe.validation.every == 0 or self.episode == self.recipe.training.episodes

    def start(self) -> None:
        """A fresh folder; an older run in it is refused."""
        if (self.folder / LAST).exists():
            raise ValueError(
                f"{self.folder} already holds a run: go on with --resume {self.folder}, or give another --out."
            )
        recipe = yaml.safe_dump(self.recipe.as_dict(), sort_keys=False, allow_unicode=True)
        write_atomically(self.folder / "recipe.yaml", recipe.encode())
        write_atomically(self.folder / CURVE, b"")
        self.save()

    def restore(self) -> None:
        """The state of last.safetensors; the curve is cut back to it."""
        checkpoint = read_checkpoint(self.folder / LAST)
        if checkpoint.header.recipe != self.recipe:
            raise ValueError(f"{self.folder} holds a run of another recipe: give another folder.")
        if checkpoint.header.data != self._data():
            raise ValueError(f"{self.folder} was trained on other data than {self.recipe.data.name} holds now.")
        self.method.load_state_dict(checkpoint.weights)
        restore_optimizer(self.method, self.optimizer, checkpoint.optimizer)
        self.episode, self.best = checkpoint.header.episode, checkpoint.header.validation
        self._since_point = checkpoint.header.since_point
        lines = [point for point in read_curve(self.folder) if point.episode <= self.episode]
        write_atomically(self.folder / CURVE, "".join(map(_line, lines)).encode())

    def step(self) -> float:
        """Learn from the next episode; gives its loss."""
        training = self.recipe.training
        _set_rates(self.optimizer, training, self.episode)
        episode = episode_images(self.train_set, self.sampler[self.episode], self.device)
        self.method.train()
        with _seeded(self.recipe.seed, self.episode) as generator:
            support, query = (self._augment(part, generator) for part in (episode.support_images, episode.query_images))
            logits = self._module(support, episode.support_labels, query)
            loss = F.cross_entropy(logits, episode.query_labels)
            self._fabric.backward(loss)
        value = loss.item()
        if not math.isfinite(value):
            raise ValueError(
                f"The loss of episode {self.episode} is {value}: lower training.learning_rate, or use float32."
            )
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.episode += 1
        hits = (logits.argmax(dim=-1) == episode.query_labels).double().mean().item()
        since = self._since_point
        self._since_point = Running(since.episodes + 1, since.loss + value, since.hits + hits)
        return value

    def validate(self) -> Point:
        """Measure on validation classes, keep the best, save the state."""
        settings = self.recipe.validation
        self.method.eval()
        result = Evaluator(self.method, self.validation_set, self.precision).evaluate(
            settings.way, settings.shot, settings.query, settings.episodes, VALIDATION_SEED, bootstrap=False
        )
        point = Point(
            episode=self.episode,
            loss=self._since_point.loss / self._since_point.episodes,
            training_accuracy=self._since_point.hits / self._since_point.episodes,
            validation_accuracy=result.accuracy,
            validation_ci95=result.ci95,
            learning_rate=learning_rate(self.recipe.training, self.episode - 1),
            reference_distance=smallest_reference_distance(self.method),
        )
        self._since_point = _NOTHING
        with (self.folder / CURVE).open("a", encoding="utf-8") as file:
            file.write(_line(point))
        if self.best is None or result.accuracy > self.best["accuracy"]:
            self.best = {"accuracy": result.accuracy, "ci95": result.ci95, "episode": self.episode} | asdict(settings)
            self._checkpoint().write(self.folder / BEST)
        self.save()
        return point

    def save(self) -> None:
        self._checkpoint(optimizer_tensors(self.method, self.optimizer)).write(self.folder / LAST)

    def _checkpoint(self, optimizer: dict[str, Tensor] | None = None) -> Checkpoint:
        header = Header(
            recipe=self.recipe,
            image_shape=self.train_set.image_shape,
            episode=self.episode,
            validation=self.best,
            since_point=self._since_point,
            data=self._data(),
            hardware=describe(self.device, self.precision),
        )
        return Checkpoint(header, self.method.state_dict(), optimizer or {})

    def _data(self) -> dict[str, str]:
        return {images.split: images.fingerprint for images in (self.train_set, self.validation_set)}


def learning_rate(training: Training, episode: int) -> float:
    """The rate at an episode, counted from 0: cut by a ratio every so many, or a half cosine down to zero."""
    if training.schedule == "cosine":
        return training.learning_rate * (1 + math.cos(math.pi * episode / training.episodes)) / 2
    return training.learning_rate * training.decay_ratio ** (episode // training.decay_every)


def _set_rates(optimizer: torch.optim.Optimizer, training: Training, episode: int) -> None:
    """AdamW multiplies weights by (1 - rate · decay); dividing by the rate gives the authors' constant (1 - decay)."""
    rate = learning_rate(training, episode)
    for group in optimizer.param_groups:
        group["lr"] = rate
        group["weight_decay"] = training.weight_decay / rate


def smallest_reference_distance(method: Method) -> float | None:
    """The smallest distance between two normalised references, the paper's Figure 3; `None` without references."""
    references = getattr(method, "references", None)
    if references is None:
        return None
    return float(torch.pdist(F.normalize(references.detach().float(), dim=-1)).min())


def read_curve(folder: Path) -> list[Point]:
    """The points of a run's learning curve."""
    path = folder / CURVE
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {CURVE}: give the folder of a training run.")
    return [Point(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _line(point: Point) -> str:
    return json.dumps(asdict(point)) + "\n"


@contextmanager
def _seeded(*key: int) -> Iterator[torch.Generator]:
    """Inside, global randomness (dropout, initialisation) follows from the key; outside it is as it was."""
    seed = int(np.random.SeedSequence(key).generate_state(1, np.uint64)[0] >> 1)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield torch.Generator().manual_seed(seed)


@contextmanager
def _stop_requests() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C or SIGTERM sets, so that a run ends between two episodes; a second one kills."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return

    def request(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, request)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

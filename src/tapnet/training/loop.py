"""The training loop: any method, any dataset.

`Run.step` is one step: learning rate → episodes → loss → gradient → check → optimizer. `Run.validate` scores validation
classes and saves. `train` does both from the start of a run, or from where it was interrupted, to its end.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from tapnet import hardware
from tapnet.backbones import make_backbone
from tapnet.checkpoint import Ancestor, Checkpoint, Header, Lineage, RunningSums, backbone_digest
from tapnet.data.batches import EpisodeImages
from tapnet.data.episodes import NotEnoughDataError
from tapnet.errors import Diverged, NonFiniteError, UserError
from tapnet.evaluation.calibration import calibrate_checkpoint
from tapnet.evaluation.candidates import class_overlap
from tapnet.evaluation.embedding import cached_features
from tapnet.evaluation.evaluator import Evaluator
from tapnet.hardware import all_reduce_sum, any_rank, describe, raise_together, resolve_precision
from tapnet.methods import Method
from tapnet.paths import BEST, LAST, feature_cache
from tapnet.recipe import Recipe, Training
from tapnet.training.initialization import init_from
from tapnet.training.loader import EpisodeLoader, derived_seed, save_episode, seeded, training_method
from tapnet.training.outcome import Interrupted, final_evaluation, provenance, record_outcome, stop_requests
from tapnet.training.run_folder import Point, RunFolder, check_resumable
from tapnet.training.teachers import load_teachers, teacher_targets

SAVE_SECONDS = 60.0  # a killed run loses no more than this, if an episode takes less
VALIDATION_SEED = 2**32  # larger than common training seeds, so that episodes differ
EXPLODED = 1e6  # no useful loss is above this
_LEAST_RATE = 1e-30  # moves no weight in float32, and can be divided by


@dataclass(frozen=True)
class Step:
    """The result of one step, or of the validation before the first, passed to `watch`."""

    episode: int  # training episodes done
    loss: float | None
    point: Point | None = None  # if the step ended with a validation


def train(
    recipe: Recipe,
    folder: Path,
    device: str = "auto",
    precision: str = "auto",
    resume: bool = False,
    watch: Callable[[Step], None] = lambda _: None,
    save_seconds: float = SAVE_SECONDS,
    fabric: Fabric | None = None,
    started: Callable[[int, list[str]], None] = lambda *_: None,
    test: bool = True,
) -> Path:
    """Train by the recipe and return the path of the checkpoint that was best on validation classes.

    `tapnet.training.run_folder` lists the files in the folder; with `resume` the run continues from its newest state as
    if it had never stopped. At the end the checkpoint is evaluated on test classes, unless `test` is false. `started`
    is called once recipe, data and folder have been checked, with the number of episodes done and the networks that it
    learns from, in words; `watch` is called after every step, and before the first. `fabric` is a launched Lightning
    Fabric, if several processes share the run.
    """
    with ExitStack() as launch:
        place = hardware.resolve_device(device)
        if place.type == "cpu":
            hardware.keep_freed_memory()
        precision = resolve_precision(precision, place)
        fabric = fabric or launch.enter_context(hardware.launched(place, precision))
        run = Run(recipe, folder, precision, fabric, resume)
        with ExitStack() as stack:
            with raise_together():
                if hardware.rank() == 0:
                    stack.enter_context(run.folder.locked())
                run.restore() if resume else run.start()
            stack.enter_context(record_outcome(run.folder, lambda: run.saved_episode))
            stack.enter_context(closing(run.loader))
            started(run.episode, run.lineage.describe())
            run.compute_features()  # before Ctrl-C waits for the end of an episode
            stop = stack.enter_context(stop_requests())
            if run.episode == 0 and run.best is None:
                watch(Step(0, None, run.validate()))
            while run.episode < recipe.training.episodes:
                if any_rank(stop.is_set()):
                    run.save()
                    raise Interrupted(folder, run.episode, LAST)
                loss = run.step()
                point = run.validate() if run.validation_is_due else None
                if time.monotonic() - run.saved_at > save_seconds:
                    run.save()
                watch(Step(run.episode, loss, point))
            any_rank(False)  # from here on every process finds the best checkpoint
            if not class_overlap(run.recipe, run.method, run.validation_set, lineage=run.lineage).trained_on:
                calibrate_checkpoint(folder / BEST, run.validation_set, run.validation_features)
        if test:
            final_evaluation(recipe, run.folder, fabric.device)
    return folder / BEST


class Run:
    """The state of a run between two steps: everything that the next one needs.

    `method` learns. `validated` is validated and saved as best.safetensors: the method, or a copy with averaged weights
    $\bar w_1 = w_1$, $\bar w_t = d \bar w_{t-1} + (1 - d) w_t$ over the steps, where d is `ema_decay`.
    """

    def __init__(self, recipe: Recipe, folder: Path, precision: str, fabric: Fabric, resume: bool = False) -> None:
        self.recipe, self.folder = recipe, RunFolder(folder)
        self.device, self.precision, self._fabric = fabric.device, precision, fabric
        with raise_together():
            self._prepare(resume)
        self.method.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.validated = self.method if recipe.training.ema_decay is None else copy.deepcopy(self.method)
        self.optimizer = make_optimizer(self.method, recipe.training)
        self._module, self._fabric_optimizer = fabric.setup(self.method, self.optimizer)
        self._module.mark_forward_method("loss")
        self.episode, self.saved_at, self.saved_episode = 0, time.monotonic(), 0
        self.best: dict[str, Any] | None = None  # validation accuracy, its interval and task, and the episode
        self._since_point = RunningSums()

    def _prepare(self, resume: bool) -> None:
        """Load the data and build the method, or raise UserError, without waiting for another process."""
        training = self.recipe.training
        hardware.check_meta_batch(training.meta_batch, hardware.world_size())
        splits = self.recipe.data.train_split, self.recipe.validation.split
        self.train_set, self.validation_set = map(self.recipe.data.images, splits)
        self.recipe = self.recipe.with_num_classes(len(self.train_set.class_names))
        self.loader = EpisodeLoader(self.recipe, self.train_set, self.device)
        self._validation_spec = self.recipe.validation.episode_spec(VALIDATION_SEED)
        try:
            self.validation_set.sampler(self._validation_spec)
        except NotEnoughDataError as error:
            task = "(validation.way, validation.shot, validation.query)"
            raise NotEnoughDataError(f"For validation {task}, {error}") from None
        shape: tuple[int, ...] = self.train_set.image_shape
        self._frozen, self._backbone_digest = None, ""
        self.validation_features: Tensor | None = None
        with seeded(self.recipe.seed):
            if training.frozen_backbone:
                name, options = self.recipe.backbone.name, self.recipe.backbone.options
                self._frozen = make_backbone(name, self.train_set.image_shape, **options).to(self.device).eval()
                self._backbone_digest, shape = backbone_digest(self._frozen), (self._frozen.dim,)
            self.method = training_method(self.recipe, shape).to(self.device)
        self._teachers: list[Method] = []
        ancestors: tuple[Ancestor, ...] = ()
        if training.teachers:
            self._teachers, ancestors = load_teachers(training, self.train_set.image_shape, self.device)
        self.lineage = Lineage(ancestors)
        if training.init_from and not resume:
            initial = init_from(self.method, training.init_from)
            self.lineage = replace(initial, ancestors=ancestors + initial.ancestors)

    def compute_features(self) -> None:
        """Compute the features of all images by a frozen backbone, or read them from the cache; processes share it."""
        if self._frozen is not None:
            self.loader.features, self.validation_features = (
                cached_features(self._frozen, images, self.precision, feature_cache()).clone()
                for images in (self.train_set, self.validation_set)
            )

    def start(self) -> None:
        """Write a fresh folder; raise UserError if it holds a run already."""
        if hardware.rank() == 0:
            self.folder.begin(self.recipe, self._metadata())
        self.save()

    def restore(self) -> None:
        """Load the newest state in the folder and cut the learning curve back to it."""
        checkpoint, path = self.folder.newest(), self.folder.path
        header = checkpoint.header
        check_resumable(path, header.recipe, self.recipe, header.episode)
        self.folder.check_readable()
        if header.data != self._fingerprints():
            raise UserError(f"{path} was trained on other data than {self.recipe.data.name} has now.")
        if header.lineage.teachers() != self.lineage.teachers():
            raise UserError(
                f"{path} was trained with other teachers than {', '.join(self.recipe.training.teachers)} "
                "(training.teachers): restore those, or choose another folder."
            )
        checkpoint.check_weights(self.method)
        self.method.load_state_dict(checkpoint.weights)
        if self.validated is not self.method:
            self.validated.load_state_dict(checkpoint.average or checkpoint.weights)
        for key, tensor in checkpoint.optimizer.items():  # each gets the device and layout of its parameter
            name, _, kind = key.rpartition("/")
            parameter = self.method.get_parameter(name)
            value = torch.empty_like(parameter).copy_(tensor) if tensor.dim() else tensor
            self.optimizer.state[parameter][kind] = value
        self.episode = self.saved_episode = header.episode
        self.lineage, self._since_point = header.lineage, header.since_point
        self.best = header.validation if (path / BEST).exists() else None
        if hardware.rank() == 0:
            self.folder.resume(self.recipe, self._metadata() | {"episode": self.episode})
        if header.recipe != self.recipe:
            self.save()

    def step(self) -> float:
        """Train on the next meta-batch, which the processes share; return its mean loss."""
        training, first = self.recipe.training, self.episode
        set_rates(self.optimizer, training, first)
        mine = range(first + hardware.rank(), first + training.meta_batch, hardware.world_size())
        statistics = MeanOfStatistics(self.method) if training.meta_batch > 1 else None
        self.method.train()
        measured: list[Tensor] = []  # loss and number of correct queries of each episode, on the device
        for index in mine:
            with ExitStack() as stack:
                if index != mine[-1] and hardware.world_size() > 1:  # gradients are reduced once per step
                    stack.enter_context(self._fabric.no_backward_sync(self._module))
                stack.enter_context(seeded(self.recipe.seed, index))
                episode = self._with_targets(self.loader[index])
                try:
                    with self._fabric.autocast():  # Fabric does so for `forward` alone
                        loss, logits = self._module.loss(episode)
                except NonFiniteError:
                    self._raise_diverged(index, math.nan)
                self._fabric.backward(loss * (1 / len(mine)))
            measured += [loss.detach(), (logits.argmax(dim=-1) == episode.query_labels).sum()]
            if statistics:
                statistics.after_episode()
        total_loss, total_accuracy = self._checked(mine, measured)
        if statistics:
            statistics.store_mean(training.meta_batch)
        if training.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.method.parameters(), training.clip_norm)
        self._fabric_optimizer.step()
        self._fabric_optimizer.zero_grad()
        if training.ema_decay is not None:
            self._average_weights(1 - training.ema_decay if first else 1.0)
        self.episode += training.meta_batch
        since = self._since_point
        self._since_point = RunningSums(
            since.episodes + training.meta_batch, since.loss + total_loss, since.hits + total_accuracy
        )
        return total_loss / training.meta_batch

    def _with_targets(self, episode: EpisodeImages) -> EpisodeImages:
        """Return the episode with the targets that the teachers give, if there are any."""
        if not self._teachers:
            return episode
        with self._fabric.autocast():
            targets = teacher_targets(episode, self._teachers, self.recipe.training.teacher_weight)
        return episode._replace(targets=targets)

    def _checked(self, mine: range, measured: list[Tensor]) -> tuple[float, float]:
        """Return the sums of losses and accuracies over all processes; raise Diverged if an episode has diverged.

        Then every process stops, and one that has such an episode saves it. Gradients are shared by all processes: if
        only they are not finite, the first process saves its first episode.
        """
        finite = gradients_are_finite(self.method)
        *values, is_finite = torch.stack([value.float() for value in (*measured, finite)]).tolist()  # the host waits
        losses = dict(zip(mine, values[::2], strict=True))
        queries = self.recipe.training.way * self.recipe.training.query
        diverged = [index for index, loss in losses.items() if not _is_sound(loss)]
        own = [len(diverged), not is_finite, sum(losses.values()), sum(hits / queries for hits in values[1::2])]
        any_diverged, any_infinite, loss, accuracy = all_reduce_sum(torch.tensor(own, dtype=torch.float64)).tolist()
        if any_diverged or any_infinite:
            with raise_together():
                if diverged or (not any_diverged and hardware.rank() == 0):
                    index = [*diverged, *losses][0]
                    self._raise_diverged(index, losses[index])
        return loss, accuracy

    def _raise_diverged(self, index: int, loss: float) -> NoReturn:
        """Save the episode and raise Diverged: what happened, what to try, and the file that reproduces it."""
        path, seed = self.folder.path / f"episode-{index}.safetensors", derived_seed(self.recipe.seed, index)
        episode = self._with_targets(self.loader.prepare(index))
        save_episode(path, self.recipe, index, seed, episode, self.method.state_dict())
        gradient, bad_loss = f"gradient at episode {index} is not finite", f"loss of episode {index} is {loss:g}"
        other = "" if self.precision == "float32" else ", or train in precision float32"
        raise Diverged(
            f"The {gradient if _is_sound(loss) else bad_loss}: lower training.learning_rate{other}. {path} holds the "
            "episode and the weights."
        )

    def _average_weights(self, share: float) -> None:
        """Move the averaged weights and running statistics by this share towards those of now; counts are copied."""
        averages, tensors = self.validated.state_dict().values(), self.method.state_dict().values()
        for average, tensor in zip(averages, tensors, strict=True):
            average.lerp_(tensor, share) if average.is_floating_point() else average.copy_(tensor)

    @property
    def validation_is_due(self) -> bool:
        every, done = self.recipe.validation.every, self.episode
        before = done - self.recipe.training.meta_batch
        return done // every > before // every or done == self.recipe.training.episodes

    def validate(self) -> Point:
        """Evaluate on validation classes, save the best checkpoint and the state."""
        method, since, path = self.validated.eval(), self._since_point, self.folder.path
        evaluator = Evaluator(method, self.validation_set, self.precision, features=self.validation_features)
        result = evaluator.evaluate(self._validation_spec, bootstrap=False)
        point = Point(
            episode=self.episode,
            loss=since.loss / since.episodes if since.episodes else None,
            training_accuracy=since.hits / since.episodes if since.episodes else None,
            validation_accuracy=result.accuracy,
            validation_ci95=result.ci95,
            learning_rate=learning_rate(self.recipe.training, max(0, self.episode - self.recipe.training.meta_batch)),
            diagnostics=method.diagnostics(),
        )
        self._since_point = RunningSums()
        is_better = self.best is None or result.accuracy > self.best["accuracy"]
        if is_better:
            scored = {"accuracy": result.accuracy, "ci95": result.ci95, "episode": self.episode}
            self.best = scored | asdict(self.recipe.validation)
        if hardware.rank() == 0:
            self.folder.add_point(point, method.snapshot())
            if is_better:
                Checkpoint(self._header(), method.state_dict()).write(path / BEST)
        self.save()
        return point

    def save(self) -> None:
        """Write the state from which the run resumes."""
        if hardware.rank() == 0:
            average = {} if self.validated is self.method else self.validated.state_dict()
            optimizer = {
                f"{name}/{key}": value
                for name, parameter in self.method.named_parameters()
                for key, value in self.optimizer.state.get(parameter, {}).items()
            }
            self.folder.save(Checkpoint(self._header(), self.method.state_dict(), optimizer, average))
        self.saved_at, self.saved_episode = time.monotonic(), self.episode

    def _header(self) -> Header:
        return Header(
            recipe=self.recipe,
            image_shape=self.train_set.image_shape,
            episode=self.episode,
            validation=self.best,
            since_point=self._since_point,
            data=self._fingerprints(),
            preprocessing=self.train_set.preprocessing.as_dict() if self.train_set.preprocessing else {},
            hardware=describe(self.device, self.precision),
            backbone_digest=self._backbone_digest,
            lineage=self.lineage,
        )

    def _fingerprints(self) -> dict[str, str]:
        return {images.split: images.fingerprint for images in (self.train_set, self.validation_set)}

    def _metadata(self) -> dict[str, Any]:
        return provenance() | {
            "state": "running",
            "seed": self.recipe.seed,
            "data": {"name": self.recipe.data.name} | self._fingerprints(),
            "hardware": describe(self.device, self.precision),
            "processes": hardware.world_size(),
            "lineage": self.lineage.describe(),
        }


def learning_rate(training: Training, episode: int) -> float:
    """Return the learning rate at an episode, counted from 0: step decay, or cosine cycles down to zero."""
    if training.schedule == "cosine":
        cycle = training.episodes // training.cycles
        return training.learning_rate * (1 + math.cos(math.pi * (episode % cycle) / cycle)) / 2
    return training.learning_rate * training.decay_ratio ** (episode // training.decay_every)


def make_optimizer(method: nn.Module, training: Training) -> torch.optim.Optimizer:
    """Return the optimizer of a recipe."""
    if training.optimizer == "sgd":
        return torch.optim.SGD(method.parameters(), training.learning_rate, momentum=0.9, nesterov=True, fused=True)
    kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
    return kind(method.parameters(), training.learning_rate, fused=True)


def set_rates(optimizer: torch.optim.Optimizer, training: Training, episode: int) -> None:
    """Set learning rate and weight decay.

    AdamW multiplies weights by (1 - rate · decay), the authors' code by (1 - decay) whatever the rate, so the decay is
    divided by the rate.
    """
    rate = max(learning_rate(training, episode), _LEAST_RATE)
    for group in optimizer.param_groups:
        group["lr"] = rate
        group["weight_decay"] = training.weight_decay / (rate if training.optimizer == "adamw" else 1)


def gradients_are_finite(module: nn.Module) -> Tensor:
    """Return whether all gradients are finite, as a scalar on their device, without waiting for it."""
    norms = [parameter.grad.norm() for parameter in module.parameters() if parameter.grad is not None]
    return torch.stack(norms).isfinite().all()


def _is_sound(loss: float) -> bool:
    return math.isfinite(loss) and loss < EXPLODED


class MeanOfStatistics:
    """The mean of the running statistics over the episodes of a meta-batch, each of which starts from the same ones.

    So the running average moves once per step, by the mean over the meta-batch, whether its episodes run one after the
    other or on several devices.
    """

    def __init__(self, module: nn.Module) -> None:
        self._buffers = list(module.buffers())
        self._start = [buffer.clone() for buffer in self._buffers]
        self._sum: Tensor | None = None  # on the CPU, but that of a GPU stays there, so that the host does not wait

    def after_episode(self) -> None:
        """Add the statistics after an episode to the sum, and reset them."""
        if not self._buffers:
            return
        place = self._buffers[0].device if self._buffers[0].is_cuda else "cpu"
        values = torch.cat([buffer.reshape(-1).to(place, torch.float64) for buffer in self._buffers])
        self._sum = values if self._sum is None else self._sum + values
        for buffer, start in zip(self._buffers, self._start, strict=True):
            buffer.copy_(start)

    def store_mean(self, episodes: int) -> None:
        """Set the statistics to their mean over the episodes of all processes."""
        if self._sum is None:
            return
        means = (all_reduce_sum(self._sum) / episodes).split([buffer.numel() for buffer in self._buffers])
        for buffer, mean in zip(self._buffers, means, strict=True):
            buffer.copy_(mean.view_as(buffer))

"""One step of training: the gradients of a meta-batch, a check of loss and gradients, and the optimizer."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import torch
from lightning_fabric import Fabric
from torch import Tensor

from tapnet import hardware
from tapnet.data.batches import EpisodeImages
from tapnet.data.episodes import EpisodeSampler
from tapnet.errors import NonFiniteError, UserError
from tapnet.hardware import all_reduce_sum, raise_together
from tapnet.recipe import Recipe
from tapnet.training.episode_loader import EpisodeLoader, derived_seed, seeded
from tapnet.training.faults import Diverged, advice, gradients_are_finite, is_sound, save_episode
from tapnet.training.schedule import make_optimizer, set_rates
from tapnet.training.sources import EpisodeSource
from tapnet.training.statistics import MeanOfStatistics
from tapnet.training.teachers import Teachers


class Learner:
    """The method of a recipe with its optimizer and episodes; an episode that diverges is saved in the folder."""

    def __init__(
        self,
        recipe: Recipe,
        source: EpisodeSource,
        sampler: EpisodeSampler,
        fabric: Fabric,
        precision: str,
        folder: Path,
        teachers: Teachers | None = None,
    ) -> None:
        self.method, self.episodes = source.method, EpisodeLoader(source, sampler, recipe.seed)
        self.optimizer = make_optimizer(self.method, recipe.training)
        self._recipe, self._fabric, self._precision, self._folder = recipe, fabric, precision, folder
        self._teachers = teachers
        self._module, self._fabric_optimizer = fabric.setup(self.method, self.optimizer)
        self._module.mark_forward_method("loss")

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """Return the optimizer's state as flat tensors, named by parameter."""
        return {
            f"{name}/{key}": value
            for name, parameter in self.method.named_parameters()
            for key, value in self.optimizer.state.get(parameter, {}).items()
        }

    def restore_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """Load the state that `optimizer_tensors` returned; each tensor gets the device and layout of its parameter."""
        parameters = dict(self.method.named_parameters())
        for full, value in tensors.items():
            owner, _, key = full.rpartition("/")
            parameter = parameters.get(owner)
            if parameter is None or value.shape not in (parameter.shape, torch.Size()):
                raise UserError(f"The optimizer state of the checkpoint does not fit its recipe: {full} differs.")
            restored = value if value.dim() == 0 else torch.empty_like(parameter).copy_(value)
            self.optimizer.state[parameter][key] = restored

    def step(self, first: int) -> tuple[float, float]:
        """Train on the meta-batch that starts with this episode.

        Return the sums of the losses and of the accuracies of its episodes, over all processes.
        """
        training = self._recipe.training
        set_rates(self.optimizer, training, first)
        mine = range(first + hardware.rank(), first + training.meta_batch, hardware.world_size())
        statistics = MeanOfStatistics(self.method) if training.meta_batch > 1 else None
        self.method.train()
        measured: list[Tensor] = []
        for index in mine:
            measured += self.learn(index, 1 / len(mine), last=index == mine[-1])
            if statistics:
                statistics.after_episode()
        sums = self._checked(mine, measured)
        if statistics:
            statistics.keep(training.meta_batch)
        self._fabric_optimizer.step()
        self._fabric_optimizer.zero_grad()
        return sums

    def learn(self, index: int, share: float, last: bool) -> tuple[Tensor, Tensor]:
        """Add `share` of an episode's gradient; return its loss and number of correct queries, on the device."""
        with ExitStack() as stack:
            if not last and hardware.world_size() > 1:  # gradients are reduced once per step
                stack.enter_context(self._fabric.no_backward_sync(self._module))
            stack.enter_context(seeded(self._recipe.seed, index))
            episode = self._with_targets(self.episodes[index])
            try:
                with self._fabric.autocast():  # Fabric does so for `forward` alone
                    loss, logits = self._module.loss(episode)
            except NonFiniteError:
                self._raise_diverged(index, math.nan)
            self._fabric.backward(loss * share)
        return loss.detach(), (logits.argmax(dim=-1) == episode.query_labels).sum()

    def _with_targets(self, episode: EpisodeImages) -> EpisodeImages:
        """Return the episode with the targets that the teachers give, if there are any."""
        if self._teachers is None:
            return episode
        with self._fabric.autocast():
            return episode._replace(targets=self._teachers.targets(episode))

    def _checked(self, mine: range, measured: list[Tensor]) -> tuple[float, float]:
        """Return the sums of losses and accuracies over all processes; raise Diverged if an episode has diverged.

        Then every process stops, and one that has such an episode saves it. Gradients are shared by all processes: if
        only they are not finite, the first process saves its first episode.
        """
        finite = gradients_are_finite(self.method)
        *values, is_finite = torch.stack([each.float() for each in (*measured, finite)]).tolist()  # the host waits here
        losses = dict(zip(mine, values[::2], strict=True))
        queries = self._recipe.training.way * self._recipe.training.query
        diverged = [index for index, loss in losses.items() if not is_sound(loss)]
        own = [len(diverged), not is_finite, sum(losses.values()), sum(hits / queries for hits in values[1::2])]
        any_diverged, any_infinite, loss, accuracy = all_reduce_sum(torch.tensor(own, dtype=torch.float64)).tolist()
        if any_diverged or any_infinite:
            with raise_together():
                if diverged or (not any_diverged and hardware.rank() == 0):
                    index = [*diverged, *losses][0]
                    self._raise_diverged(index, losses[index])
        return loss, accuracy

    def _raise_diverged(self, index: int, loss: float) -> NoReturn:
        """Save the episode and raise Diverged."""
        path = self._folder / f"episode-{index}.safetensors"
        seed = derived_seed(self._recipe.seed, index)
        episode = self._with_targets(self.episodes.prepare(index))
        save_episode(path, self._recipe, index, seed, episode, self.method.state_dict())
        raise Diverged(advice(index, loss, self._precision, path))

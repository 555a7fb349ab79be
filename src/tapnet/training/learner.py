"""One step of training: the gradients of a meta-batch, one look at what came out, and the optimizer."""

from __future__ import annotations

import math
from contextlib import ExitStack
from pathlib import Path
from typing import NoReturn

import torch
from lightning_fabric import Fabric
from torch import Tensor

from tapnet import distributed
from tapnet.data.episodes import EpisodeSampler
from tapnet.distributed import all_reduce_sum, raise_together
from tapnet.functional import NonFiniteError
from tapnet.recipe import Recipe
from tapnet.training.episode_loader import EpisodeLoader, derived_seed, seeded
from tapnet.training.faults import Diverged, advice, gradients_are_finite, is_sound, save_episode
from tapnet.training.schedule import set_rates
from tapnet.training.sources import EpisodeSource
from tapnet.training.statistics import MeanOfStatistics
from tapnet.trusted import trusted_episode


class Learner:
    """The method of a recipe with its optimizer and its episodes; an episode that diverges is kept in the folder."""

    def __init__(
        self,
        recipe: Recipe,
        source: EpisodeSource,
        sampler: EpisodeSampler,
        fabric: Fabric,
        precision: str,
        folder: Path,
    ) -> None:
        self.method, self.episodes = source.method, EpisodeLoader(source, sampler, recipe.seed)
        self.optimizer = torch.optim.AdamW(self.method.parameters(), lr=recipe.training.learning_rate, fused=True)
        self._recipe, self._fabric, self._precision, self._folder = recipe, fabric, precision, folder
        self._module, self._fabric_optimizer = fabric.setup(self.method, self.optimizer)
        self._module.mark_forward_method("loss")

    def step(self, first: int) -> tuple[float, float]:
        """Learn from the meta-batch that begins with this episode.

        Return the sums of the losses and of the accuracies of its episodes, over all processes.
        """
        training = self._recipe.training
        set_rates(self.optimizer, training, first)
        mine = range(first + distributed.rank(), first + training.meta_batch, distributed.size())
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
        """Add this share of an episode's gradient; return its loss and how many queries it got right, on the device."""
        with ExitStack() as stack:
            if not last and distributed.size() > 1:  # gradients meet once per step
                stack.enter_context(self._fabric.no_backward_sync(self._module))
            stack.enter_context(seeded(self._recipe.seed, index))
            episode = self.episodes[index]
            try:
                with trusted_episode(episode.way), self._fabric.autocast():  # Fabric does so for `forward` alone
                    loss, logits = self._module.loss(episode)
            except NonFiniteError:
                self._keep(index, {index: math.nan})
            self._fabric.backward(loss * share)
        return loss.detach(), (logits.argmax(dim=-1) == episode.query_labels).sum()

    def _checked(self, mine: range, measured: list[Tensor]) -> tuple[float, float]:
        """Return the sums of losses and accuracies over all processes, unless an episode of one has diverged.

        Then every process stops, and one with such an episode keeps it and says so. Gradients are those of all
        processes: where only they are not finite, the first process speaks.
        """
        finite = gradients_are_finite(self.method)
        *values, is_finite = torch.stack([each.float() for each in (*measured, finite)]).tolist()  # the host waits here
        losses = dict(zip(mine, values[::2], strict=True))
        queries = self._recipe.training.way * self._recipe.training.query
        guilty = [index for index, loss in losses.items() if not is_sound(loss)]
        own = [len(guilty), not is_finite, sum(losses.values()), sum(hits / queries for hits in values[1::2])]
        found, broken, loss, accuracy = all_reduce_sum(torch.tensor(own, dtype=torch.float64)).tolist()
        if found or broken:
            with raise_together():
                if guilty or (not found and distributed.rank() == 0):
                    self._keep([*guilty, *losses][0], losses)
        return loss, accuracy

    def _keep(self, index: int, losses: dict[int, float]) -> NoReturn:
        path = self._folder / f"episode-{index}.safetensors"
        seed = derived_seed(self._recipe.seed, index)
        save_episode(path, self._recipe, index, seed, self.episodes.prepare(index), self.method.state_dict())
        raise Diverged(advice(index, losses[index], self._precision, path))

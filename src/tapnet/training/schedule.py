"""How fast a run learns at each of its episodes."""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from tapnet.recipe import Recipe, Training


def learning_rate(training: Training, episode: int) -> float:
    """The rate at an episode, counted from 0: cut by a ratio every so many, or half cosines down to zero."""
    if training.schedule == "cosine":
        cycle = _cycle(training)
        return training.learning_rate * (1 + math.cos(math.pi * (episode % cycle) / cycle)) / 2
    return training.learning_rate * training.decay_ratio ** (episode // training.decay_every)


def _cycle(training: Training) -> int:
    return training.episodes // training.cycles


def set_rates(optimizer: torch.optim.Optimizer, training: Training, episode: int) -> None:
    """AdamW multiplies weights by (1 - rate · decay); dividing by the rate gives the authors' constant (1 - decay)."""
    rate = learning_rate(training, episode)
    for group in optimizer.param_groups:
        group["lr"] = rate
        group["weight_decay"] = training.weight_decay / rate


def refuse_other_past(before: Recipe, now: Recipe, done: int) -> None:
    """A run goes on by another recipe only if that would have led to where it stands after these episodes."""
    episodes, cycles = now.training.episodes, now.training.cycles
    if replace(before, name=now.name, training=replace(before.training, episodes=episodes, cycles=cycles)) != now:
        raise ValueError(
            "A run goes on by its own recipe: only name, training.episodes and training.cycles may change. For anything"
            " else start a run in another folder."
        )
    if episodes < done:
        raise ValueError(f"The run has {done} episodes behind it: training.episodes needs to be more, got {episodes}.")
    if any(learning_rate(before.training, episode) != learning_rate(now.training, episode) for episode in range(done)):
        raise ValueError(
            f"A cosine goes on in whole cycles, here of {_cycle(before.training)} episodes: for instance --set "
            f"training.episodes={2 * before.training.episodes} training.cycles={2 * before.training.cycles}."
        )

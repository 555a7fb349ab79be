"""The learning rate of a run at each of its episodes."""

from __future__ import annotations

import math

import torch

from tapnet.recipe import Training

_LEAST = 1e-30  # moves no weight in float32, and can be divided by


def learning_rate(training: Training, episode: int) -> float:
    """Return the learning rate at an episode, counted from 0: step decay, or cosine cycles down to zero."""
    if training.schedule == "cosine":
        cycle = training.episodes // training.cycles
        return training.learning_rate * (1 + math.cos(math.pi * (episode % cycle) / cycle)) / 2
    return training.learning_rate * training.decay_ratio ** (episode // training.decay_every)


def make_optimizer(method: torch.nn.Module, training: Training) -> torch.optim.Optimizer:
    """Return the optimizer of a recipe."""
    if training.optimizer == "sgd":
        return torch.optim.SGD(method.parameters(), training.learning_rate, momentum=0.9, nesterov=True, fused=True)
    return torch.optim.AdamW(method.parameters(), training.learning_rate, fused=True)


def set_rates(optimizer: torch.optim.Optimizer, training: Training, episode: int) -> None:
    """Set learning rate and weight decay.

    AdamW multiplies weights by (1 - rate · decay), the authors' code by (1 - decay) whatever the rate, so the decay is
    divided by the rate.
    """
    rate = max(learning_rate(training, episode), _LEAST)
    for group in optimizer.param_groups:
        group["lr"] = rate
        group["weight_decay"] = training.weight_decay / (rate if training.optimizer == "adamw" else 1)

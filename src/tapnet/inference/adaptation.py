"""A method adapted to labeled examples: the head of all of them, or of all but some that are left out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tapnet.errors import UserError
from tapnet.inference.examples import Examples, distinct
from tapnet.inference.networks import EmbeddingModel, networks_supporting
from tapnet.methods import Head, LinearHead, Method


def adapt(examples: Examples, model: EmbeddingModel, method: str, options: Mapping[str, Any]) -> Head:
    """Return the head of a method for these examples; of a linear one, its linear layer alone, on the CPU."""
    adapted = adapted_head(examples, model, method, options)
    linear = adapted.linear()
    if linear is None:
        return adapted if model.device.type == "cpu" else _DeviceHead(adapted, model.device)
    return LinearHead(linear.weight.cpu(), linear.bias.cpu(), linear.normalize)


@dataclass(frozen=True)
class _DeviceHead(Head):
    """A head on another device, for features on the CPU."""

    head: Head
    device: torch.device

    def logits(self, query: Tensor) -> Tensor:
        return self.head.logits(query.to(self.device)).cpu()


def adapted_head(examples: Examples, model: EmbeddingModel, method: str, options: Mapping[str, Any]) -> Head:
    """Return the head of a method for these examples, with its projection where it has one."""
    labels = torch.from_numpy(examples.labels).to(model.device)
    way = int(examples.labels.max()) + 1
    ready = method_for(way, model, method, options)
    with torch.no_grad():
        return ready.adapt(torch.from_numpy(examples.features).to(model.device), labels, way)


def method_for(way: int, model: EmbeddingModel, method: str, options: Mapping[str, Any]) -> Method:
    """Return the method named, of this network; raise UserError if it does not take so many classes."""
    ready = model.method_named(method, options)
    if ready.max_way is None or way <= ready.max_way:
        return ready
    further = " or ".join(name for name in networks_supporting(way) if name != model.name)
    hint = f"use the network {further}, or" if further else "no bundled network takes as many; use"
    raise UserError(
        f"{way} classes are more than the {ready.max_way} that the network {model.name!r} takes: {hint} the method "
        "centroid, or train with more classes.",
        parameter="method",
    )


def held_out_logits(
    examples: Examples,
    model: EmbeddingModel,
    method: str,
    options: Mapping[str, Any],
    rounds: int,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64]] | None:
    """Return logits (n, way) of examples by heads fitted without them, and their labels.

    `None` if a class has a single distinct image.
    """
    once, ranks = distinct(examples)
    if np.bincount(once.labels, minlength=int(examples.labels.max()) + 1).min() < 2:
        return None
    logits, answers, rounds = [], [], min(int(ranks.max()) + 1, rounds)
    for held in range(rounds):
        head = adapt(once.kept(ranks != held), model, method, options)
        left = once.kept(ranks == held)
        logits.append(head.logits(torch.from_numpy(left.features)).detach().double().numpy())
        answers.append(left.labels)
        if progress:
            progress(held + 1, rounds)
    return np.concatenate(logits), np.concatenate(answers)

"""The file that reproduces an episode at which a run diverged."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tapnet.data.batches import EpisodeImages
from tapnet.errors import NonFiniteError, UserError
from tapnet.paths import write_atomically
from tapnet.recipe import Recipe, recipe_from
from tapnet.training.loader import training_method

_KEY, _WEIGHTS = "tapnet-episode", "weights/"


def save_episode(
    path: Path, recipe: Recipe, index: int, seed: int, episode: EpisodeImages, weights: Mapping[str, Tensor]
) -> None:
    """Write a file from which `episode_loss` computes the loss of this episode again.

    Its images are augmented; `seed` is that of the dropout.
    """
    optional = {"orders": episode.orders, "targets": episode.targets}
    tensors = {"images": episode.images, "classes": episode.classes}
    tensors |= {name: tensor for name, tensor in optional.items() if tensor is not None}
    tensors |= {_WEIGHTS + name: tensor for name, tensor in weights.items()}
    packed = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    sizes = episode.way, episode.shot, episode.query
    header = json.dumps({"recipe": recipe.as_dict(), "episode": index, "seed": seed, "sizes": sizes}, sort_keys=True)
    write_atomically(path, save(packed, {_KEY: header}))


def episode_loss(path: Path) -> float:
    """Return the loss of a saved episode, computed again in float32 on the CPU."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        recipe, seed = recipe_from(header["recipe"], str(path)), header["seed"]
        way, shot, query = header["sizes"]
        optional = tensors.get("orders"), tensors.get("targets")
        episode = EpisodeImages(tensors["images"], way, shot, query, tensors["classes"], *optional)
    except (SafetensorError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a saved episode ({error!r}).") from None
    method = training_method(recipe, tuple(episode.images.shape[1:])).train()
    weights = {name.removeprefix(_WEIGHTS): tensor for name, tensor in tensors.items() if name.startswith(_WEIGHTS)}
    method.load_state_dict(weights)
    # as in training: the dropout mask depends on the memory layout
    layout = torch.channels_last if episode.images.dim() == 4 else torch.contiguous_format
    method.to(memory_format=layout)  # type: ignore[call-overload]
    episode = episode._replace(images=episode.images.contiguous(memory_format=layout))
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        try:
            return method.loss(episode).loss.item()
        except NonFiniteError:
            return math.nan

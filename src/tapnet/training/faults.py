"""When the numbers of a run go wrong: the episode that did it is kept, so that it can be looked at again."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from tapnet.checkpoint import write_atomically
from tapnet.data.batches import EpisodeImages
from tapnet.errors import UserError
from tapnet.functional import NonFiniteError
from tapnet.recipe import Recipe, recipe_from
from tapnet.training.sources import method_for

EXPLODED = 1e6  # a loss above this has left every useful range
_KEY = "tapnet-episode"
_WEIGHTS = "weights/"


class Diverged(UserError):
    """The loss or its gradient is not finite, or has exploded."""


def is_sound(loss: float) -> bool:
    return math.isfinite(loss) and loss < EXPLODED


def gradients_are_finite(module: torch.nn.Module) -> Tensor:
    """Whether all gradients are finite, as a scalar on their device that nobody has waited for yet."""
    norms = [parameter.grad.norm() for parameter in module.parameters() if parameter.grad is not None]
    return torch.stack(norms).isfinite().all()


def advice(episode: int, loss: float, precision: str, reproduction: Path) -> str:
    """What happened at this episode, where it is kept and what to try."""
    loss_is = f"The loss of episode {episode} is {loss:g}"
    what = f"The gradient at episode {episode} is not finite" if is_sound(loss) else loss_is
    tries = ["lower training.learning_rate"] + (["train in precision float32"] if precision != "float32" else [])
    return f"{what}: {', or '.join(tries)}. {reproduction} holds the episode and the weights that met it."


def save_episode(
    path: Path, recipe: Recipe, index: int, seed: int, episode: EpisodeImages, weights: Mapping[str, Tensor]
) -> None:
    """A file from which `episode_loss` computes the loss of this episode again.

    The images are those after augmentation; `seed` is that of the dropout.
    """
    tensors = {"images": episode.images, "classes": episode.classes}
    tensors |= {_WEIGHTS + name: tensor for name, tensor in weights.items()}
    packed = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    sizes = episode.way, episode.shot, episode.query
    header = json.dumps({"recipe": recipe.as_dict(), "episode": index, "seed": seed, "sizes": sizes}, sort_keys=True)
    write_atomically(path, save(packed, {_KEY: header}))


def episode_loss(path: Path) -> float:
    """The loss of a kept episode, computed again in float32 on the CPU."""
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[_KEY])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        recipe, seed = recipe_from(header["recipe"], str(path)), header["seed"]
        way, shot, query = header["sizes"]
        episode = EpisodeImages(tensors["images"], way, shot, query, tensors["classes"])
    except (SafetensorError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a kept episode ({error!r}).") from None
    method = method_for(recipe, episode.images.shape[1:]).train()
    weights = {name.removeprefix(_WEIGHTS): tensor for name, tensor in tensors.items() if name.startswith(_WEIGHTS)}
    method.load_state_dict(weights)
    # as in training: dropout draws its lots in the order of the memory
    layout = torch.channels_last if episode.images.dim() == 4 else torch.contiguous_format
    method.to(memory_format=layout)  # type: ignore[call-overload]
    episode = episode._replace(images=episode.images.contiguous(memory_format=layout))
    with torch.random.fork_rng(), torch.set_grad_enabled(method.gradients_at_test):
        torch.manual_seed(seed)
        try:
            return method.loss(episode).loss.item()
        except NonFiniteError:
            return math.nan

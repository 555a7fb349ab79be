"""Initialization from the weights of a trained network."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

import torch
from torch import Tensor

from tapnet.checkpoint import Ancestor, Checkpoint, Header, read_checkpoint
from tapnet.errors import UserError
from tapnet.methods import Method
from tapnet.recipe_file import bundled_recipes
from tapnet.wording import pluralize

Weights = dict[str, Tensor]

_BACKBONE = "backbone."
_NORMALIZATION = f"{_BACKBONE}normalization."  # a running mean, which the first steps of training find
_DIGITS = 12  # of a digest, enough to tell checkpoints apart


def init_from(method: Method, path: str) -> tuple[str, tuple[Ancestor, ...]]:
    """Load the weights of a checkpoint into the method; return their origin in words, and by the classes seen.

    Raise UserError if they do not fit.
    """
    checkpoint, ancestors = read_trained(path, "init_from")
    try:
        return take_weights(method, checkpoint), ancestors
    except ValueError as error:
        raise UserError(f"The network of training.init_from: {error}") from None


def read_trained(path: str, key: str) -> tuple[Checkpoint, tuple[Ancestor, ...]]:
    """Return a checkpoint that this key of `training` names, and the networks by which it has seen classes."""
    try:
        checkpoint = read_checkpoint(path)
    except (ValueError, FileNotFoundError) as error:
        name = Path(path).name
        known = not Path(path).exists() and name in {recipe.stem for recipe in bundled_recipes()}
        hint = f" `tapnet train {name}` trains it." if known else ""
        raise UserError(f"The network of training.{key}: {error}{hint}") from None
    recipe = checkpoint.header.recipe
    return checkpoint, (Ancestor(recipe.data, recipe.validation.split), *checkpoint.header.ancestors)


def described(header: Header) -> str:
    """Return the name of a trained network, after how many episodes it was saved, and its digest."""
    digest = f"; digest {header.digest[:_DIGITS]}" if header.digest else ""
    return f"{header.recipe.name} after {pluralize(header.episode, 'episode')}{digest}"


def take_weights(method: Method, checkpoint: Checkpoint) -> str:
    """Load the weights of the checkpoint into the method and return a description of where they come from.

    The backbone must fit, or be twice as wide as one that was trained on mirrored and rotated episodes. Other
    parameters are loaded if they have the same shape.
    """
    theirs, own, header = checkpoint.method().state_dict(), method.state_dict(), checkpoint.header
    is_wider = header.recipe.training.augmentation == "dihedral" and _is_twice_as_wide(own, theirs)
    theirs = _widened(theirs, own) if is_wider else theirs
    loaded = {name: tensor for name, tensor in theirs.items() if name in own and own[name].shape == tensor.shape}
    others = (theirs.keys() | own.keys()) - loaded.keys()
    differing = sorted(name for name in others if name.startswith(_BACKBONE) and not name.startswith(_NORMALIZATION))
    if differing:
        raise UserError(
            f"{header.recipe.name} has another backbone than the recipe, {', '.join(differing[:3])} differ. Choose a "
            "network of the same kind, widths and image channels, or of half the widths if it was trained with "
            "`augmentation: dihedral`."
        )
    method.load_state_dict(own | loaded)
    words = [f"initialized from {described(header)}"]
    words += ["widened by its transposed copy"] if is_wider else []
    for what, names in (("fresh", own.keys() - loaded.keys()), ("left out", theirs.keys() - own.keys())):
        words += [f"{what}: {', '.join(_shortened(names, (own.keys() | theirs.keys()) - names))}"] if names else []
    words += [f"itself {header.origin}"] if header.origin else []
    return "; ".join(words)


def _is_twice_as_wide(own: Weights, theirs: Weights) -> bool:
    filters = [name for name in own if name.startswith(_BACKBONE) and own[name].dim() == 4]
    return bool(filters) and all(name in theirs and len(own[name]) == 2 * len(theirs[name]) for name in filters)


def _widened(theirs: Weights, own: Weights) -> Weights:
    """Return weights of a backbone twice as wide: theirs, and a copy that sees every image transposed.

    At first neither copy sees the maps of the other. A network that was trained on mirrored and rotated images knows
    transposed ones as well as upright ones, and pooling has the same windows for both.
    """
    doubled = {}
    for name, tensor in theirs.items():
        if not name.startswith(_BACKBONE) or name.startswith(_NORMALIZATION) or tensor.dim() == 0:
            doubled[name] = tensor
        elif tensor.dim() == 4 and own[name].shape[1] == 2 * tensor.shape[1]:
            zeros = torch.zeros_like(tensor)
            doubled[name] = torch.cat([torch.cat([tensor, zeros], dim=1), torch.cat([zeros, tensor.mT], dim=1)])
        else:  # the filters of the first layer, whose input is the image, and vectors
            doubled[name] = torch.cat([tensor, tensor.mT if tensor.dim() == 4 else tensor])
    return doubled


def _shortened(names: Set[str], others: Set[str]) -> list[str]:
    """Return the names, sorted; where they are all names of a module, the name of the module instead."""
    divided = {name.partition(".")[0] for name in others}
    firsts = {name: name.partition(".")[0] for name in names}
    return sorted({name if first in divided else first for name, first in firsts.items()})

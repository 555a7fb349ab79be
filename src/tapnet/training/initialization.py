"""Initialization from the weights of trained networks."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence, Set
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from tapnet.backbones import Backbone
from tapnet.checkpoint import Checkpoint, Lineage, read_checkpoint
from tapnet.errors import UserError
from tapnet.methods import Method
from tapnet.recipe import bundled_recipes
from tapnet.text import pluralize

_BACKBONE = "backbone."
_NORMALIZATION = f"{_BACKBONE}normalization."  # a running mean, which the first steps of training find


def init_from(method: Method, paths: Sequence[str]) -> Lineage:
    """Load the weights of checkpoints into the method; raise UserError if they do not fit."""
    checkpoints = []
    for path in paths:
        with prefix_errors("init_from", path):
            checkpoints.append(read_checkpoint(path))
    with prefix_errors("init_from"):
        return load_initial_weights(method, *checkpoints)


@contextmanager
def prefix_errors(key: str, path: str = "") -> Iterator[None]:
    """Let errors inside name a key of `training`, and the command that trains the network of a path that is missing."""
    try:
        yield
    except (ValueError, FileNotFoundError) as error:
        name, _, seed = Path(path).name.rpartition("-seed")
        changes = ["--set", f"seed={seed}", "--out", path] if seed.isdecimal() else []
        name, hint = name if changes else Path(path).name, ""
        if isinstance(error, FileNotFoundError) and name in {recipe.stem for recipe in bundled_recipes()}:
            hint = f" `{shlex.join(['tapnet', 'train', name, *changes])}` trains it."
        raise UserError(f"The network of training.{key}: {error}{hint}") from None


def load_initial_weights(method: Method, *checkpoints: Checkpoint) -> Lineage:
    """Load the weights of the checkpoints into the method and return where its weights come from.

    The backbone must fit, or be twice as wide as one that was trained on mirrored and rotated episodes. Other
    parameters are loaded if they have the same shape. Of several checkpoints only the backbones are loaded, side by
    side, as the branches of the backbone.
    """
    own, headers = method.state_dict(), [checkpoint.header for checkpoint in checkpoints]
    several = len(checkpoints) > 1
    theirs = _side_by_side(checkpoints, method.backbone) if several else checkpoints[0].method().state_dict()
    mirrored = all(header.recipe.training.augmentation == "dihedral" for header in headers)
    filters = [name for name in own if name.startswith(_BACKBONE) and own[name].dim() == 4]
    twice_as_wide = all(name in theirs and len(own[name]) == 2 * len(theirs[name]) for name in filters)
    is_widened = mirrored and bool(filters) and twice_as_wide
    theirs = _widened(theirs, own) if is_widened else theirs
    loaded = {name: tensor for name, tensor in theirs.items() if name in own and own[name].shape == tensor.shape}
    differing = [name for name in sorted((theirs.keys() | own.keys()) - loaded.keys()) if _is_of_backbone(name)]
    if differing:
        networks = " and ".join(dict.fromkeys(header.recipe.name for header in headers))
        raise UserError(
            f"{networks} {'have' if several else 'has'} another backbone than the recipe, {', '.join(differing[:3])} "
            f"differ. Choose {'networks' if several else 'a network'} of the same kind, widths and image channels, or "
            "of half the widths if trained with `augmentation: dihedral`."
        )
    method.load_state_dict(own | loaded)
    fresh, left_out = (
        tuple(_shortened(names, (own.keys() | theirs.keys()) - names))
        for names in (own.keys() - loaded.keys(), theirs.keys() - own.keys())
    )
    ancestors = (ancestor for checkpoint in checkpoints for ancestor in checkpoint.as_ancestors("initialized"))
    return Lineage(tuple(ancestors), is_widened, fresh, left_out)


def _is_of_backbone(name: str) -> bool:
    return name.startswith(_BACKBONE) and not name.startswith(_NORMALIZATION)


def _side_by_side(checkpoints: Sequence[Checkpoint], backbone: Backbone) -> dict[str, Tensor]:
    """Return weights of a backbone whose branches, or half of them, are the backbones of the checkpoints.

    Raise UserError if the number of branches is another, or if the backbones differ.
    """
    if len(checkpoints) not in (backbone.branches, backbone.branches / 2):
        raise UserError(
            f"Expected {pluralize(backbone.branches, 'network')}, one for each of the `branches` of the backbone, or "
            f"half as many if trained with `augmentation: dihedral`, got {len(checkpoints)}."
        )
    states = [checkpoint.method().state_dict() for checkpoint in checkpoints]
    networks = [{name: tensor for name, tensor in state.items() if _is_of_backbone(name)} for state in states]
    shapes = [{name: tensor.shape for name, tensor in network.items()} for network in networks]
    for number, shape in enumerate(shapes):
        if shape != shapes[0]:
            first, other = (checkpoints[index].header.recipe.name for index in (0, number))
            raise UserError(
                f"Network {number + 1} of the list, {other}, has another backbone than the first, {first}: choose "
                "networks of the same kind, widths and image channels."
            )
    return {
        name: torch.cat([network[name] for network in networks]) if tensor.dim() else tensor
        for name, tensor in networks[0].items()
    }


def _widened(theirs: dict[str, Tensor], own: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights of a backbone twice as wide: theirs, and a copy that sees every image transposed.

    At first neither copy sees the maps of the other. A network that was trained on mirrored and rotated images knows
    transposed ones as well as upright ones, and pooling has the same windows for both.
    """
    doubled = {}
    for name, tensor in theirs.items():
        if not _is_of_backbone(name) or tensor.dim() == 0:
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

"""Initialization from the weights of a trained network, in place of random ones."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from tapnet.checkpoint import Checkpoint, read_checkpoint
from tapnet.errors import UserError
from tapnet.methods import Method
from tapnet.recipe import bundled_recipes
from tapnet.wording import pluralize

_BACKBONE = "backbone."
_DIGITS = 12  # of a digest, enough to tell checkpoints apart


def init_from(method: Method, path: str) -> str:
    """Give the method the weights of a checkpoint and return their origin; raise UserError if they do not fit."""
    try:
        return take_weights(method, read_checkpoint(path))
    except (ValueError, FileNotFoundError) as error:
        name = Path(path).name
        known = not Path(path).exists() and name in {recipe.stem for recipe in bundled_recipes()}
        hint = f" `tapnet train {name}` makes that one." if known else ""
        raise UserError(f"The weights to initialize from (training.init_from): {error}{hint}") from None


def take_weights(method: Method, checkpoint: Checkpoint) -> str:
    """Give the method the weights of the checkpoint and return where they come from, in words.

    The backbone needs to fit. Other parameters are taken where they have the same shape.
    """
    given, own, header = checkpoint.method().state_dict(), method.state_dict(), checkpoint.header
    taken = {name: tensor for name, tensor in given.items() if name in own and own[name].shape == tensor.shape}
    unfit = sorted(name for name in (given.keys() | own.keys()) - taken.keys() if name.startswith(_BACKBONE))
    if unfit:
        raise UserError(
            f"{header.recipe.name} has another backbone than the recipe, {', '.join(unfit[:3])} differ. Give a network "
            "of the same kind, widths and image channels."
        )
    method.load_state_dict(own | taken)
    words = [f"initialized from {header.recipe.name} after {pluralize(header.episode, 'episode')}"]
    words += [f"digest {header.digest[:_DIGITS]}"] if header.digest else []
    for what, names in (("fresh", own.keys() - taken.keys()), ("left out", given.keys() - taken.keys() - own.keys())):
        words += [f"{what}: {', '.join(_shortened(names, (own.keys() | given.keys()) - names))}"] if names else []
    words += [f"itself {header.origin}"] if header.origin else []
    return "; ".join(words)


def _shortened(names: Set[str], others: Set[str]) -> list[str]:
    """Return the names, sorted; for all those of a module that has no other, the name of the module."""
    divided = {name.partition(".")[0] for name in others}
    firsts = {name: name.partition(".")[0] for name in names}
    return sorted({name if first in divided else first for name, first in firsts.items()})

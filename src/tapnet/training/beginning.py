"""Weights to begin with: those of a trained network in place of random ones."""

from __future__ import annotations

from tapnet.checkpoint import Checkpoint
from tapnet.methods import Method

_BACKBONE = "backbone."
_DIGITS = 12  # of a digest, enough to tell checkpoints apart


def take_weights(method: Method, checkpoint: Checkpoint) -> str:
    """Give the method the weights of the checkpoint; gives where they come from, in words.

    The backbone needs to fit. References are taken, too, when there are as many of the same length, else stay fresh.
    """
    given, own = checkpoint.method().state_dict(), method.state_dict()
    fitting = {name: tensor for name, tensor in given.items() if name in own and own[name].shape == tensor.shape}
    names = {name for name in given.keys() | own.keys() if name.startswith(_BACKBONE)}
    differing = sorted(names - fitting.keys())
    header = checkpoint.header
    if differing or not names:
        raise ValueError(
            f"The weights to begin with are those of {header.recipe.name}, whose backbone is not that of the recipe: "
            f"{', '.join(differing[:3]) or 'it is frozen'}. Give those of a network of the same kind and widths."
        )
    method.load_state_dict(own | fitting)
    fresh = sorted(own.keys() - fitting.keys())
    note = f"; fresh: {', '.join(fresh)}" if fresh else ""
    return f"begun with {header.recipe.name} after {header.episode} episodes (digest {header.digest[:_DIGITS]}){note}"

"""A module with other parameters, for one task."""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import Tensor, nn


def with_tensors(module: nn.Module, tensors: Mapping[str, Tensor], prefix: str = "") -> nn.Module:
    """Return the module with other parameters and buffers, by their full names; it shares everything else.

    The given module is not changed: not even for a moment, as by hooks or `torch.func.functional_call`, so several
    threads may use it at once.
    """
    changed = copy.copy(module)
    for kind in ("_parameters", "_buffers"):
        own = getattr(module, kind)
        setattr(changed, kind, {name: tensors.get(prefix + name, tensor) for name, tensor in own.items()})
    changed._modules = {
        name: None if part is None else with_tensors(part, tensors, f"{prefix}{name}.")
        for name, part in module._modules.items()
    }
    return changed

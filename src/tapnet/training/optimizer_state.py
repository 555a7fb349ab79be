"""The state of an optimizer as named tensors, for checkpoints."""

from __future__ import annotations

import torch
from torch import Tensor

from tapnet.errors import UserError


def optimizer_tensors(method: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as flat tensors, named by parameter."""
    return {
        f"{name}/{key}": value
        for name, parameter in method.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(method: torch.nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load the state that `optimizer_tensors` returned; each tensor gets the device and layout of its parameter."""
    parameters = dict(method.named_parameters())
    for full, value in tensors.items():
        owner, _, key = full.rpartition("/")
        parameter = parameters.get(owner)
        if parameter is None or value.shape not in (parameter.shape, torch.Size()):
            raise UserError(f"The optimizer state of the checkpoint does not fit its recipe: {full} differs.")
        optimizer.state[parameter][key] = value if value.dim() == 0 else torch.empty_like(parameter).copy_(value)

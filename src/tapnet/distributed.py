"""Several processes of one run: rank and size, and sums over all. In a single process they do nothing."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.strategies.ddp import DDPStrategy
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel

from tapnet.errors import UserError
from tapnet.hardware import PRECISIONS

STRATEGIES = ("auto", "ddp")
_OPTIONS = inspect.signature(DistributedDataParallel).parameters
_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers"  # by version
_DDP: dict[str, Any] = {_BUFFERS: False}  # we average running statistics ourselves
_LOST = re.compile(r"peer|gloo|nccl|connection|timed out|timeout", re.IGNORECASE)


@dataclass(frozen=True)
class Layout:
    """How many processes share the work; `None` means as many as `torchrun` started, or one."""

    devices: int | None = None  # processes per machine
    num_nodes: int | None = None
    strategy: str = "auto"

    def resolved(self) -> tuple[int, int]:
        """Return (processes per machine, machines)."""
        devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if self.devices is None else self.devices
        nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1")) if self.num_nodes is None else self.num_nodes
        if self.strategy not in STRATEGIES:
            raise UserError(
                f"A strategy is one of {', '.join(STRATEGIES)}, got {self.strategy!r}.", parameter="strategy"
            )
        if devices < 1 or nodes < 1:
            raise UserError(f"Expected at least one device and one node, got {devices} and {nodes}.")
        return devices, nodes


@contextmanager
def launched(device: torch.device, precision: str, layout: Layout | None = None) -> Iterator[Fabric]:
    """Yield Lightning Fabric with its processes started; end their group on exit."""
    layout = layout or Layout()
    devices, nodes = layout.resolved()
    several = devices * nodes > 1 or layout.strategy == "ddp"
    fabric = Fabric(
        accelerator=device.type,
        devices=devices,
        num_nodes=nodes,
        strategy=DDPStrategy(**_DDP) if several else "auto",
        precision=PRECISIONS[precision],  # type: ignore[arg-type]
    )
    if several:
        fabric.launch()
    try:
        yield fabric
    finally:
        if several and distributed.is_initialized():
            distributed.destroy_process_group()


def size() -> int:
    """Return the number of processes that share this run."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process; rank 0 writes the files."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Return the sum of this tensor over all processes."""
    if size() == 1:
        return tensor
    shared = tensor.cuda() if distributed.get_backend() == "nccl" else tensor.clone()
    distributed.all_reduce(shared)
    return shared.to(tensor.device)


def any_rank(flag: bool) -> bool:
    """Return whether the flag is true in any process."""
    return flag if size() == 1 else bool(all_reduce_sum(torch.tensor(int(flag))))


@contextmanager
def raise_together() -> Iterator[None]:
    """If any process raises ValueError or OSError inside, end all; only the first of them raises its error."""
    own_error = None
    try:
        yield
    except (ValueError, OSError) as error:
        own_error = error
    flags = torch.zeros(size())
    flags[rank()] = own_error is not None
    failed_ranks = all_reduce_sum(flags).nonzero()
    if own_error is not None and rank() == failed_ranks[0]:
        raise own_error
    if len(failed_ranks):
        raise SystemExit(2)


def lost_process(error: RuntimeError) -> bool:
    """Return whether an error means that another process of the run has died."""
    return size() > 1 and bool(_LOST.search(str(error)))

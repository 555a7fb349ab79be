"""Device, precision and processes of a run, and the description of the machine.

In a single process `rank` is 0 and sums over all processes are the values themselves.
"""

from __future__ import annotations

import ctypes
import logging
import os
import platform
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, distributed

from tapnet.errors import UserError

if TYPE_CHECKING:
    from lightning_fabric import Fabric

PRECISIONS = {"float32": "32-true", "bf16": "bf16-mixed"}  # our name: Lightning Fabric's
STRATEGIES = ("auto", "ddp")
_LOST = re.compile(r"peer|gloo|nccl|connection|timed out|timeout", re.IGNORECASE)


def resolve_device(device: str = "auto") -> torch.device:
    """Return the device by name; `auto` is the first GPU if there is one."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [kind for kind, is_there in present.items() if is_there]
    if device != "auto" and device.partition(":")[0] not in available:
        raise UserError(
            f"Device {device!r} is not on this machine, which has: {', '.join(available)}. Choose one of them or auto.",
            parameter="device",
        )
    return torch.device(available[0] if device == "auto" else device)


def to_float_tensor(pixels: NDArray[np.uint8], device: torch.device) -> Tensor:
    """Return float images (n, channels, height, width) in [0, 1], channels last in memory, from uint8 (n, h, w, c).

    They are copied to the device as uint8, a quarter of the bytes.
    """
    return to_device(pixels, device).permute(0, 3, 1, 2).float().div_(255)


def to_device(array: NDArray[Any], device: torch.device) -> Tensor:
    """Return the array as a tensor on the device; to a GPU it is copied asynchronously, from pinned memory."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def device_of(module: torch.nn.Module) -> torch.device:
    """Return the device of the parameters of a module; the CPU if it has none."""
    return next(module.parameters(), torch.empty(0)).device


def resolve_precision(precision: str, device: torch.device) -> str:
    """Return `float32` or `bf16`; `auto` is bf16 if the hardware has instructions for it, else float32.

    Lightning's names, `32-true` and `bf16-mixed`, are accepted, too. A CPU without bf16 instructions emulates them at a
    fraction of the speed of float32.
    """
    precision = {theirs: ours for ours, theirs in PRECISIONS.items()}.get(precision, precision)
    if precision == "auto":
        capabilities = _capabilities() if device.type == "cpu" else {}
        on_cpu = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
        on_gpu = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        return "bf16" if on_cpu or on_gpu else "float32"
    if precision not in PRECISIONS:
        raise UserError(f"Precision is one of auto, {', '.join(PRECISIONS)}, got {precision!r}.")
    return precision


def keep_freed_memory() -> None:
    """Tell glibc to keep freed large blocks, because the next step needs them again.

    Otherwise each is returned to the system and mapped again, page by page: a sixth of a training step on a CPU.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        trim_threshold, mmap_max = -1, -4  # the numbers of these parameters in malloc.h
        mallopt(mmap_max, 0)
        mallopt(trim_threshold, 2**31 - 1)


def describe(device: torch.device, precision: str) -> dict[str, Any]:
    """Return the hardware and versions that a result was computed with."""
    processor = str(_capabilities().get("cpu_name") or platform.processor() or platform.machine())
    return {
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else processor,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "precision": precision,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.system(),
    }


def _capabilities() -> dict[str, Any]:
    """Return what PyTorch knows of the CPU; empty if PyTorch is too old."""
    return dict(getattr(torch.cpu, "get_capabilities", dict)())


def check_meta_batch(meta_batch: int, processes: int) -> None:
    """Raise UserError if processes cannot share the episodes of a step evenly."""
    if meta_batch % processes:
        raise UserError(
            f"{processes} processes need training.meta_batch to be a multiple of {processes}, got {meta_batch}: for "
            f"instance training.meta_batch={processes}."
        )


@contextmanager
def launched(
    device: torch.device,
    precision: str,
    devices: int | None = None,
    num_nodes: int | None = None,
    strategy: str = "auto",
    meta_batch: int | None = None,
) -> Iterator[Fabric]:
    """Yield Lightning Fabric with its processes started, `devices` on each of the machines; end their group on exit.

    `None` means as many as `torchrun` started, or one. Raise UserError before any is started if they cannot share the
    episodes of a step, `meta_batch`, evenly.
    """
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy
    from torch.nn.parallel import DistributedDataParallel

    devices = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if devices is None else devices
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1")) if num_nodes is None else num_nodes
    if strategy not in STRATEGIES:
        raise UserError(f"A strategy is one of {', '.join(STRATEGIES)}, got {strategy!r}.", parameter="strategy")
    if devices < 1 or nodes < 1:
        raise UserError(f"Expected at least one device and one node, got {devices} and {nodes}.")
    if meta_batch is not None:
        check_meta_batch(meta_batch, devices * nodes)
    logging.getLogger("lightning_fabric.utilities.rank_zero").setLevel(logging.WARNING)  # it announces the precision
    several = devices * nodes > 1 or strategy == "ddp"
    # running statistics are left to us: they are averaged once per step
    known = signature(DistributedDataParallel).parameters
    no_buffers: Any = {"forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers": False}
    fabric = Fabric(
        accelerator=device.type,
        devices=devices,
        num_nodes=nodes,
        strategy=DDPStrategy(**no_buffers) if several else "auto",
        precision=PRECISIONS[precision],  # type: ignore[arg-type]
    )
    if several:
        fabric.launch()
    try:
        yield fabric
    finally:
        if several and distributed.is_initialized():
            distributed.destroy_process_group()


def world_size() -> int:
    """Return the number of processes that share this run."""
    return distributed.get_world_size() if distributed.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process; rank 0 writes the files."""
    return distributed.get_rank() if distributed.is_initialized() else 0


def all_reduce_sum(tensor: Tensor) -> Tensor:
    """Return the sum of this tensor over all processes."""
    if world_size() == 1:
        return tensor
    shared = tensor.cuda() if distributed.get_backend() == "nccl" else tensor.clone()
    distributed.all_reduce(shared)
    return shared.to(tensor.device)


def any_rank(flag: bool) -> bool:
    """Return whether the flag is true in any process."""
    return flag if world_size() == 1 else bool(all_reduce_sum(torch.tensor(int(flag))))


@contextmanager
def raise_together() -> Iterator[None]:
    """If any process raises ValueError or OSError inside, end all; only the first of them raises its error."""
    own_error = None
    try:
        yield
    except (ValueError, OSError) as error:
        own_error = error
    flags = torch.zeros(world_size())
    flags[rank()] = own_error is not None
    failed_ranks = all_reduce_sum(flags).nonzero()
    if own_error is not None and rank() == failed_ranks[0]:
        raise own_error
    if len(failed_ranks):
        raise SystemExit(2)


def lost_process(error: RuntimeError) -> bool:
    """Return whether an error means that another process of the run has died."""
    return world_size() > 1 and bool(_LOST.search(str(error)))

"""Device and precision for this machine, and its description."""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from typing import Any

import torch

from tapnet.errors import UserError

PRECISIONS = {"float32": "32-true", "bf16": "bf16-mixed"}  # our name: Lightning Fabric's


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
        return "bf16" if _multiplies_bf16(device) else "float32"
    if precision not in PRECISIONS:
        raise UserError(f"Precision is one of auto, {', '.join(PRECISIONS)}, got {precision!r}.")
    return precision


def _multiplies_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        capabilities = _capabilities()
        return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))
    return False


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

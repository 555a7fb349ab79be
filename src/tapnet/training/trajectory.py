"""Snapshots of a method at each point of the learning curve, such as TapNet's references."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from tapnet.errors import UserError
from tapnet.paths import write_atomically

TRAJECTORY = "references.safetensors"
_EPISODES = "episodes"


@dataclass
class Trajectory:
    """Snapshots of named tensors, and the number of training episodes before each."""

    episodes: list[int] = field(default_factory=list)
    tensors: dict[str, list[Tensor]] = field(default_factory=dict)

    def add(self, episode: int, snapshot: Mapping[str, Tensor]) -> None:
        if snapshot:
            self.episodes.append(episode)
        for name, tensor in snapshot.items():
            self.tensors.setdefault(name, []).append(tensor.detach().float().cpu().clone())

    def cut_after(self, episode: int) -> None:
        """Delete snapshots after this episode."""
        kept = sum(stamp <= episode for stamp in self.episodes)
        del self.episodes[kept:]
        for snapshots in self.tensors.values():
            del snapshots[kept:]

    def write(self, folder: Path) -> None:
        """Write the snapshots to the folder of a run; without snapshots there is no file."""
        if self.episodes:
            stacked = {name: torch.stack(snapshots) for name, snapshots in self.tensors.items()}
            write_atomically(folder / TRAJECTORY, save({_EPISODES: torch.tensor(self.episodes), **stacked}))


def read_trajectory(folder: Path) -> Trajectory:
    """Return the snapshots of a run; empty if its method has none."""
    path = folder / TRAJECTORY
    if not path.is_file():
        return Trajectory()
    try:
        tensors = load_file(path)
        return Trajectory(tensors.pop(_EPISODES).tolist(), {name: list(each) for name, each in tensors.items()})
    except (SafetensorError, KeyError) as error:
        raise UserError(f"{path} is damaged ({error}): delete it to resume without it.") from None

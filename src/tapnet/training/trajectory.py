"""Where the references stood at each point of the learning curve; the figures of their paths are drawn from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor
from torch.nn import functional as F

from tapnet.checkpoint import write_atomically
from tapnet.methods import Method, references_of

TRAJECTORY = "references.safetensors"


@dataclass
class Trajectory:
    """Snapshots of the references (ways, dim), each after so many training episodes."""

    episodes: list[int] = field(default_factory=list)
    references: list[Tensor] = field(default_factory=list)

    def add(self, episode: int, references: Tensor) -> None:
        self.episodes.append(episode)
        self.references.append(references.detach().float().cpu().clone())

    def cut_after(self, episode: int) -> None:
        """Forget what came after this episode."""
        kept = sum(stamp <= episode for stamp in self.episodes)
        del self.episodes[kept:], self.references[kept:]

    def write(self, folder: Path) -> None:
        if self.episodes:
            tensors = {"episodes": torch.tensor(self.episodes), "references": torch.stack(self.references)}
            write_atomically(folder / TRAJECTORY, save(tensors))


def smallest_reference_distance(method: Method) -> float | None:
    """The smallest distance between two normalised references, the paper's Figure 3; `None` without references."""
    references = references_of(method)
    if references is None:
        return None
    return float(torch.pdist(F.normalize(references.detach().float(), dim=-1)).min())


def read_trajectory(folder: Path) -> Trajectory:
    """The snapshots of a run; none when its method has no references."""
    path = folder / TRAJECTORY
    if not path.is_file():
        return Trajectory()
    try:
        tensors = load_file(path)
        return Trajectory(tensors["episodes"].tolist(), list(tensors["references"]))
    except (SafetensorError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}): delete it to go on without it.") from None

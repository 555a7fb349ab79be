"""What a step across processes costs beyond its episodes: the size of its messages and the time they take.

torchrun --standalone --nproc-per-node=2 benchmarks/messages.py
"""

from __future__ import annotations

import json
import statistics
import time

import torch
from torch import distributed

from tapnet.backbones import make_backbone

NETWORKS = (("conv4", (1, 28, 28)), ("resnet12", (3, 84, 84)))


def main() -> None:
    distributed.init_process_group("gloo")
    for name, shape in NETWORKS:
        network = make_backbone(name, shape)
        counts = [sum(map(torch.numel, part)) for part in (network.parameters(), network.buffers())]
        sizes = {"gradients": 4 * counts[0], "statistics": 8 * counts[1], "loss and stop": 24}
        times = {what: _seconds(size) for what, size in sizes.items()}
        if distributed.get_rank() == 0:
            print(json.dumps({"network": name, "processes": distributed.get_world_size(), "bytes": sizes, "ms": times}))
    distributed.destroy_process_group()


def _seconds(size: int, times: int = 15) -> float:
    """The median milliseconds of a sum over all processes."""
    message = torch.zeros(-(-size // 4))
    taken = []
    for _ in range(times):
        distributed.barrier()
        start = time.perf_counter()
        distributed.all_reduce(message)
        taken.append(time.perf_counter() - start)
    return round(1000 * statistics.median(taken), 3)


if __name__ == "__main__":
    main()

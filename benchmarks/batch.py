"""Batch prediction: one process against Ray with one and two workers, and the parts of the cost of a cluster.

Images are JPEG files of 640×480 pixels, embedded by `photos-fast`. Start-up is measured by itself. The ratios compare
CPU seconds per image, which a busy machine disturbs less, and images per second. Ray's CPU seconds are those of all its
processes: workers, driver, raylet, and what runs beside them.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import torch
from pairs import Row
from PIL import Image

from tapnet.inference import fit, write_task
from tapnet.jobs import sources
from tapnet.jobs.batch import plan_batch
from tapnet.jobs.ray_session import ray_session
from tapnet.jobs.sources import read_chunks

IMAGES, SIZE = 384, (640, 480)
CHUNK = 16  # smaller than in use, so that a short run has some chunks for every worker
NAMES, SMALL_CHUNKS = 1_000_000, 300
MODEL_IMAGES, MODEL_CORES = 10**8, 16


@dataclass(frozen=True)
class Run:
    """One batch prediction: until the first part, and from there on."""

    startup: float  # seconds until the first part is written
    rate: float  # images per second of the middle third, while all workers are busy
    cpu: float  # CPU seconds per image of the middle third, of all processes
    workers_cpu: float  # of the processes that predict alone


def rows(pairs: int) -> list[Row]:
    torch.set_num_threads(1)
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (as the plain command; Ray gives way to all else by 15)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _write_images(folder)
        began = time.perf_counter()
        with ray_session("local"):
            connected = time.perf_counter() - began
            runs: dict[str, list[Run]] = {"plain": [], "one": [], "two": []}
            for number in range(pairs):
                for name, workers in (("plain", 0), ("one", 1), ("two", 2))[:: -1 if number % 2 else 1]:
                    runs[name].append(_measured(folder, f"{name}-{number}", workers))
            dispatch = _dispatch(folder)
        listing, memory = _listing(folder)
    middle = {
        name: Run(*(statistics.median(values) for values in zip(*(vars(run).values() for run in several), strict=True)))
        for name, several in runs.items()
    }
    plain, one, two = middle["plain"], middle["one"], middle["two"]
    rates = f"images per second: {plain.rate:.1f} plain, {one.rate:.1f} by 1 worker, {two.rate:.1f} by 2"
    alone = [f"the workers alone {run.workers_cpu / plain.cpu:.3g}" for run in (one, two)]
    target = "at most 1.1"
    startup = connected + one.startup
    return [
        Row("batch: CPU per image, Ray 1 worker / plain", one.cpu / plain.cpu, target, one.cpu, plain.cpu, alone[0]),
        Row("batch: CPU per image, Ray 2 workers / plain", two.cpu / plain.cpu, target, two.cpu, plain.cpu, alone[1]),
        Row("batch: images per second, Ray 1 worker / plain", one.rate / plain.rate, "at least 0.9", note=rates),
        Row("batch: images per second, Ray 2 workers / 1", two.rate / one.rate, "2 on two free cores"),
        Row("batch: CPU seconds per image", plain.cpu, "", note="one thread: read, decode, embed, write"),
        Row("batch: CPU seconds of the driver per chunk", dispatch, "", note="the part that workers do not share"),
        Row("batch: seconds until the first part, Ray", startup, "", note=f"plain {plain.startup:.1f}"),
        Row("batch: CPU seconds to list a million names", listing, "", note=f"{memory:.0f} bytes each in the driver"),
        *(_model(nodes, plain.cpu, dispatch, listing / NAMES, startup) for nodes in (10, 100, 1000)),
    ]


def _model(nodes: int, image: float, chunk: float, name: float, startup: float) -> Row:
    """Return the share of time in which workers predict, by the formula of docs/scaling.md."""
    work = MODEL_IMAGES * image / (nodes * MODEL_CORES)
    dispatch = MODEL_IMAGES / sources.CHUNK * chunk
    total = startup + MODEL_IMAGES * name + max(work, dispatch) + 2 * sources.CHUNK * image
    note = f"computed, not run: {MODEL_IMAGES:.0e} images, {MODEL_CORES} cores each, {total / 3600:.2f} hours"
    return Row(f"batch: share of time used on {nodes} nodes", work / total, "", work, total, note)


def _measured(folder: Path, name: str, workers: int) -> Run:
    """Predict all images into a new folder; without workers in this process."""
    job = plan_batch(folder / "task", [folder / "photos"], str(folder / f"{name}.parquet"), chunk_size=CHUNK)
    began = time.perf_counter()
    parts = job.run_on_ray(None, workers, "cpu") if workers else job.run()
    next(parts)
    startup = time.perf_counter() - began
    third = len(job.missing) // 3
    for _ in islice(parts, third):  # until all workers have started
        pass
    clock, before = time.perf_counter(), _cpu_seconds(workers)
    images = sum(part.images for part in islice(parts, third))  # later, those without work end
    rate, after = images / (time.perf_counter() - clock), _cpu_seconds(workers)
    list(parts)
    return Run(startup, rate, *((b - a) / images for a, b in zip(before, after, strict=True)))


def _cpu_seconds(workers: int) -> tuple[float, float]:
    """Of all processes of Ray with this one, and of its workers alone; without workers of this process."""
    here = psutil.Process()
    own = sum(here.cpu_times()[:2])
    if not workers:
        return own, own
    others = {each: sum(each.cpu_times()[:2]) for each in here.children(recursive=True)}
    predicting = [seconds for each, seconds in others.items() if "_PartWriter" in "".join(each.cmdline())]
    return own + sum(others.values()), sum(predicting)


def _dispatch(folder: Path) -> float:
    """Return the CPU seconds of this process per chunk, where chunks are so small that it is always busy."""
    (folder / "none.txt").write_text("".join(f"none-{number}.jpg\n" for number in range(SMALL_CHUNKS)))
    job = plan_batch(folder / "task", [folder / "none.txt"], str(folder / "none.parquet"), chunk_size=1)
    parts = job.run_on_ray(None, 1, "cpu")
    next(parts)
    began = time.process_time()
    chunks = sum(1 for _ in parts)
    return (time.process_time() - began) / chunks


def _write_images(folder: Path) -> None:
    """Write a task and smooth random photographs; the content does not matter, the work does."""
    generator = np.random.default_rng(0)
    (folder / "photos").mkdir()
    for number in range(IMAGES):
        small = Image.fromarray(generator.integers(0, 256, (12, 16, 3), dtype=np.uint8))
        small.resize(SIZE, Image.Resampling.BICUBIC).save(folder / "photos" / f"{number:05}.jpg", quality=90)
    images = sorted((folder / "photos").iterdir())
    write_task(fit({"a": images[:3], "b": images[3:6]}, "photos-fast"), folder / "task")


def _listing(folder: Path) -> tuple[float, float]:
    """Return the seconds to list a million names, and the bytes that each takes."""
    (folder / "names.txt").write_text("".join(f"/data/photographs/2026/image-{n:08}.jpg\n" for n in range(NAMES)))
    before, began = psutil.Process().memory_info().rss, time.process_time()
    chunks = list(read_chunks([folder / "names.txt"]))
    taken = time.process_time() - began
    assert sum(map(len, chunks)) == NAMES
    return taken, (psutil.Process().memory_info().rss - before) / NAMES

"""Batch prediction: one process against Ray with one and two workers, and the parts of the cost of a cluster.

Images per second are compared by the clock: one worker with the plain command, two workers with two plain commands at a
time, since two processes share a machine's caches and clock rate with or without Ray. Images are JPEG files of 640×480
pixels, embedded by `photos-fast`. What Ray costs has three parts, each measured by itself: CPU seconds once, until the
first part is written; per image, in the workers; and per second, in the driver and in Ray's other processes, however
many images it holds. A busy machine disturbs CPU seconds less than the clock.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import islice
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import psutil
import torch
from pairs import Row
from PIL import Image

from tapnet.inference import fit, write_task
from tapnet.jobs import sources
from tapnet.jobs.batch import plan_batch
from tapnet.jobs.on_ray import predict_on_ray, ray_session
from tapnet.jobs.sources import read_chunks

IMAGES, SIZE = 1536, (640, 480)
CHUNK = 32  # smaller than in use, so that a short run has some chunks for every worker
NAMES, SMALL_CHUNKS = 1_000_000, 300
MODEL_IMAGES, MODEL_CORES = 10**8, 16


@dataclass(frozen=True)
class Run:
    """One batch prediction: until the first part, and the middle third, in which all workers are busy."""

    startup: float  # seconds until the first part is written
    startup_cpu: float  # CPU seconds until then, of all processes
    rate: float  # images per second
    cpu: float  # CPU seconds per image of the processes that predict
    other_cpu: float  # CPU seconds per second of all other processes


@dataclass(frozen=True)
class Half:
    """What one of two plain processes does with half of the images, once it has written its first part."""

    rate: float  # images per second
    cpu: float  # CPU seconds per image


def rows(pairs: int) -> list[Row]:
    torch.set_num_threads(1)
    os.environ["RAY_worker_niceness"] = "0"  # noqa: SIM112 (as the plain command; Ray gives way to all else by 15)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        _write_images(folder)
        began, before = time.perf_counter(), _cpu_seconds()
        with ray_session("local"):
            connected, connected_cpu = time.perf_counter() - began, sum(_spent(before))
            runs: dict[str, list[Run]] = {"plain": [], "one": [], "two": []}
            halves: list[tuple[Half, Half]] = []
            for number in range(pairs):
                halves.append(_halves(folder, number))
                for name, workers in (("plain", 0), ("one", 1), ("two", 2))[:: -1 if number % 2 else 1]:
                    runs[name].append(_measured(folder, f"{name}-{number}", workers))
            dispatch = _dispatch(folder)
        listing, memory = _listing(folder)
    middle = {
        name: Run(*(statistics.median(values) for values in zip(*(vars(run).values() for run in several), strict=True)))
        for name, several in runs.items()
    }
    plain, one, two = middle["plain"], middle["one"], middle["two"]
    both, both_cpu = (statistics.median(map(function, halves)) for function in (_rate, _cpu))
    rates = f"images per second: {plain.rate:.1f} plain, {one.rate:.1f} by 1 worker"
    rates_of_two = f"images per second: {both:.1f} by 2 plain processes at a time, {two.rate:.1f} by 2 workers"
    startup, startup_cpu = connected + one.startup, connected_cpu + one.startup_cpu
    return [
        *_overhead("1 worker / plain", one, plain.cpu, 1),
        *_overhead("2 workers / 2 plain", two, both_cpu, 2),
        Row("batch: CPU seconds that Ray costs once", startup_cpu, "", note=f"plain {plain.startup_cpu:.1f}"),
        Row("batch: images per second, Ray 1 worker / plain", one.rate / plain.rate, "at least 0.9", note=rates),
        Row("batch: images per second, Ray 2 workers / 2 plain", two.rate / both, "at least 0.9", note=rates_of_two),
        Row("batch: CPU seconds per image", plain.cpu, "", note="one thread: read, decode, embed, write"),
        Row("batch: CPU seconds of the driver per chunk", dispatch, "", note="the part that workers do not share"),
        Row("batch: seconds until the first part, Ray", startup, "", note=f"plain {plain.startup:.1f}"),
        Row("batch: CPU seconds to list a million names", listing, "", note=f"{memory:.0f} bytes each in the driver"),
        *(_model(nodes, plain.cpu, dispatch, listing / NAMES, startup) for nodes in (10, 100, 1000)),
    ]


def _overhead(name: str, run: Run, plain: float, workers: int) -> list[Row]:
    """Return the CPU per image as it was here, and as it would be where each worker has a core to itself."""
    workers_alone = run.cpu / plain
    here = workers_alone + run.other_cpu / run.rate / plain
    note = (
        f"CPU per second of other processes {run.other_cpu:.3f}; with them {here:.3g} at {run.rate:.1f} images a second"
    )
    free = workers_alone * (1 + run.other_cpu / workers)
    target = "at most 1.1"
    return [
        Row(f"batch: CPU per image, Ray {name}", workers_alone, target, run.cpu, plain, note),
        Row(f"batch: the same with all processes, {name}", free, target, note="on free cores, computed from the parts"),
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
    began, before = time.perf_counter(), _cpu_seconds()
    parts = predict_on_ray(job, None, workers, "cpu") if workers else job.run()
    next(parts)
    startup, (predicting, others) = time.perf_counter() - began, _spent(before, workers)
    startup_cpu = predicting + (others if workers else 0)
    third = len(job.missing) // 3
    for _ in islice(parts, third):  # until all workers have started
        pass
    began, before = time.perf_counter(), _cpu_seconds()
    images = sum(part.images for part in islice(parts, third))  # later, those without work end
    taken, (predicting, others) = time.perf_counter() - began, _spent(before, workers)
    list(parts)
    return Run(startup, startup_cpu, images / taken, predicting / images, others / taken)


def _halves(folder: Path, number: int) -> tuple[Half, Half]:
    """Predict half of the images in each of two new processes at a time."""
    images = sorted((folder / "photos").iterdir())
    for part in range(2):
        (folder / f"half-{part}.txt").write_text("".join(f"{image}\n" for image in images[part::2]))
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        first, second = pool.map(partial(_half, folder, number), range(2))
    return first, second


def _half(folder: Path, number: int, part: int) -> Half:
    torch.set_num_threads(1)
    out = str(folder / f"half-{part}-{number}.parquet")
    parts = plan_batch(folder / "task", [folder / f"half-{part}.txt"], out, chunk_size=CHUNK).run()
    next(parts)
    began, before = time.perf_counter(), time.process_time()
    images = sum(part.images for part in parts)
    return Half(images / (time.perf_counter() - began), (time.process_time() - before) / images)


def _rate(halves: tuple[Half, Half]) -> float:
    return sum(half.rate for half in halves)


def _cpu(halves: tuple[Half, Half]) -> float:
    return sum(half.cpu for half in halves) / len(halves)


def _cpu_seconds() -> dict[psutil.Process, float]:
    """Return the CPU seconds of this process and of those that it started."""
    here = psutil.Process()
    return {process: sum(process.cpu_times()[:2]) for process in (here, *here.children(recursive=True))}


def _spent(before: dict[psutil.Process, float], workers: int = 0) -> tuple[float, float]:
    """Return the CPU seconds since then of what predicts, Ray's workers or this process, and of all other processes."""
    taken = {process: seconds - before.get(process, 0) for process, seconds in _cpu_seconds().items()}
    predicting = sum(
        seconds
        for process, seconds in taken.items()
        if ("_PartWriter" in "".join(process.cmdline()) if workers else process.pid == os.getpid())
    )
    return predicting, sum(taken.values()) - predicting


def _dispatch(folder: Path) -> float:
    """Return the CPU seconds of this process per chunk, where chunks are so small that it is always busy."""
    (folder / "none.txt").write_text("".join(f"none-{number}.jpg\n" for number in range(SMALL_CHUNKS)))
    job = plan_batch(folder / "task", [folder / "none.txt"], str(folder / "none.parquet"), chunk_size=1)
    parts = predict_on_ray(job, None, 1, "cpu")
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

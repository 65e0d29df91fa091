"""The machine a number was measured on, its GEMM peak, and how numbers are taken."""

import os
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import torch


def describe() -> dict[str, str | int | float]:
    """Processor, cores, load, threads and versions."""
    name = platform.processor()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        name = lines[0].partition(":")[2].strip() if lines else name
    return {
        "cpu": name,
        "cores": os.cpu_count() or 0,
        "load_1min": round(os.getloadavg()[0], 2),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "flwr", "timm", "numpy")},
    }


def interleaved(
    contestants: Mapping[str, Callable[[], object]], repetitions: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Wall and processor seconds of each contestant, taking turns so that load hits all alike."""
    wall: dict[str, list[float]] = {name: [] for name in contestants}
    cpu: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(repetitions):
        for name, run in contestants.items():
            started, used = perf_counter(), process_time()
            run()
            wall[name].append(perf_counter() - started)
            cpu[name].append(process_time() - used)
    return wall, cpu


def ratio(of: list[float], to: list[float]) -> float:
    """Median over the repetitions of the ratio within one: what a drifting load spoils least."""
    return median(a / b for a, b in zip(of, to, strict=True))


def gemm_gflops(rows: int, inner: int, columns: int, repetitions: int = 7) -> float:
    """Best GFLOP/s of one float32 matrix product."""
    a, b = torch.randn(rows, inner), torch.randn(inner, columns)
    out = torch.empty(rows, columns)
    seconds = []
    for _ in range(repetitions):
        started = perf_counter()
        for _ in range(3):
            torch.mm(a, b, out=out)
        seconds.append((perf_counter() - started) / 3)
    return 2e-9 * rows * inner * columns / min(seconds)


def tail_gflop(
    width: int, classes: int, clients: int, images: int, epochs: int
) -> dict[str, float]:
    """GFLOP of one round of the reduced computation, by part; elementwise work is not counted.

    A product with an (a, b) matrix is 2ab a sample. Weights are frozen, so backward is one
    product, not two, everywhere but in the head.
    """
    samples = clients * images * epochs * 1e-9
    square = 2 * width**2
    return {
        "mlp": samples * 2 * (2 * 4 * square),  # two layers of 4h x h, forward and backward
        "output projection": samples / images * 2 * square,  # B moves a (heads, h) matrix a client
        "whitener": samples * 2 * square,
        "head": samples * 3 * 2 * width * classes,
    }

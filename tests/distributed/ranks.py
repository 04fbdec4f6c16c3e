"""Two processes on this machine, joined by gloo, that run one function each."""

from __future__ import annotations

import os
import tempfile
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

RANKS = 2


def run(function: Callable[..., None], *arguments: Any) -> None:
    """``function(mesh, *arguments)`` on each rank; raises AssertionError with what failed on which."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_rank, args=(folder, function, arguments), nprocs=RANKS, join=True)
        failed = [Path(folder, f"{rank}.txt") for rank in range(RANKS)]
        told = "\n".join(f"rank {rank}: {p.read_text()}" for rank, p in enumerate(failed) if p.exists())
    assert not told, told


def _rank(rank: int, folder: str, function: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank))
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=RANKS,
        timeout=timedelta(seconds=120),
    )
    try:
        mesh = dist.init_device_mesh("cpu", (RANKS,))
        with torch.no_grad():
            function(mesh, *arguments)
    except BaseException:
        Path(folder, f"{rank}.txt").write_text(traceback.format_exc())
    else:
        dist.barrier()
    dist.destroy_process_group()

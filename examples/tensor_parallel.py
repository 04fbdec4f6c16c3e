"""Tensor parallelism on one machine: each socket or NUMA node computes half of every layer.

The weights are split by torch's own ``parallelize_module``; each rank rewrites its own half. As it is,
two processes are started here. With a process bound to each node:

    torchrun --nproc-per-node=2 --no-python bash -c \\
        'exec numactl --cpunodebind=$LOCAL_RANK --membind=$LOCAL_RANK python examples/tensor_parallel.py'
"""

import os
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import fxrewrite

WIDTH, HEAD = 256, 64


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for part in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


# What reads the whole width is split by outputs, what gathers the halves by inputs.
PLAN = {
    **dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel()),
    **dict.fromkeys(("o", "down"), RowwiseParallel()),
}


def main():
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)  # the same weights and input on every rank
    model = nn.Sequential(Layer(), Layer()).bfloat16().eval()
    x = torch.randn(1, 16, WIDTH).bfloat16()
    with torch.no_grad():
        whole = model(x)
        for layer in model:
            parallelize_module(layer, dist.init_device_mesh("cpu", (ranks,)), PLAN)
        fast = fxrewrite.rewrite(model, inplace=True)
        out = fast(x)
    if rank == 0:
        print(f"rank 0 of {ranks}: {fast.report.summary()}")
        print(f"largest difference to one process: {(out - whole).abs().max():.4f}")


def start(rank, ranks, meeting):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=ranks)
    main()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "LOCAL_RANK" in os.environ:  # started by torchrun
        dist.init_process_group("gloo")
        main()
        dist.destroy_process_group()
    else:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(start, args=(2, f"{folder}/meeting"), nprocs=2)

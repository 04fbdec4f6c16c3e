"""Models spread over two ranks, rewritten on each: the numbers of the model in one process."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import fxrewrite
from fxrewrite.ops import native_missing
from fxrewrite.ops.counters import counters, reset_counters
from tests.support.contract import check

from . import ranks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="torch has no distributed package"),
]
BF16 = torch.bfloat16


class Layer(nn.Module):
    """Attention and MLP on [B, L, 64], the heads and the hidden width to be split over ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(64, 128), nn.Linear(64, 128), nn.Linear(64, 128)
        self.o, self.up, self.down = nn.Linear(128, 64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        q, k, v = (layer(x).unflatten(-1, (-1, 32)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


SITES = {"linear": 12, "sdpa": 2}
PLAN = {
    **dict.fromkeys(("q", "k", "v", "up"), ColwiseParallel()),
    **dict.fromkeys(("o", "down"), RowwiseParallel()),
}


def model():
    torch.manual_seed(0)
    return nn.Sequential(Layer(), Layer()).eval().to(BF16)


def x(length=5):
    return torch.randn(2, length, 64, generator=torch.Generator().manual_seed(length)).to(BF16)


def tensor_parallel(mesh):
    spread = model()
    for layer in spread:
        parallelize_module(layer, mesh, PLAN)
    return spread


def fully_sharded(mesh):
    spread = model()
    for layer in spread:
        fully_shard(layer, mesh=mesh)
    return fully_shard(spread, mesh=mesh)


def right(fast, plain, given):
    out = fast(given)
    assert type(out) is torch.Tensor
    check(out, plain(given), copy.deepcopy(plain).double()(given.double()))


def matched(report):
    return {kind: count["matched"] for kind, count in report.counts().items()}


def spread_model(mesh, build, inplace, example):
    plain, spread = model(), build(mesh)
    names = {name: (type(p), p.shape) for name, p in spread.named_parameters()}
    fast = fxrewrite.rewrite(spread, (x(),) if example else (), inplace=inplace)
    for length in (5, 9, 5, 7):
        right(fast, plain, x(length))
    # the layers are compiled once and share their sites where their code does, as under FSDP's hooks
    assert set(matched(fast.report)) == set(SITES), fast.report
    assert fast.report.rejected == []
    assert {name: (type(p), p.shape) for name, p in fast.named_parameters()} == names
    if native_missing is None:
        reset_counters()
        fast(x())
        assert {op: sum(calls.values()) for op, calls in counters().items()} == SITES
    # weights that change: none was kept
    for m in (fast, plain):
        for parameter in m.parameters():
            local = parameter.to_local() if isinstance(parameter, DTensor) else parameter
            local.mul_(0.5)
    right(fast, plain, x())


@pytest.mark.parametrize("example", [False, True])
@pytest.mark.parametrize("inplace", [True, False])
def test_tensor_parallel(inplace, example):
    ranks.run(spread_model, tensor_parallel, inplace, example)


def test_fully_sharded():
    ranks.run(spread_model, fully_sharded, True, False)


def data_parallel_model(mesh):
    plain = model()
    fast = fxrewrite.rewrite(DistributedDataParallel(model()), (x(),))
    right(fast, plain, x())
    assert set(matched(fast.report)) == set(SITES)
    assert fast.report.rejected == []


def test_data_parallel():
    ranks.run(data_parallel_model)


def gradient(mesh):
    """A gradient through DTensors: the original code, told so."""
    spread = tensor_parallel(mesh)
    fast = fxrewrite.rewrite(spread)
    with torch.enable_grad():
        fast(x()).sum().backward()
    assert matched(fast.report) == {"linear": 0, "sdpa": 0}
    assert all("gradient" in site.reason for site in fast.report.sites)
    assert all(p.grad is not None for p in spread.parameters())


def test_tensor_parallel_with_a_gradient():
    ranks.run(gradient)


def through_inductor(mesh):
    fast = fxrewrite.rewrite(tensor_parallel(mesh), then="inductor")
    right(fast, model(), x())
    sites = fast.report.sites
    assert sites
    assert all(site.reason for site in sites if not site.matched)


def test_tensor_parallel_through_inductor():
    ranks.run(through_inductor)


def reports_of_all_ranks(mesh):
    fast = fxrewrite.rewrite(tensor_parallel(mesh))
    fast(x())
    merged = fast.report.gather()
    assert list(merged.parts) == ["rank.0", "rank.1"]
    assert [matched(part) for part in merged.parts.values()] == [SITES] * ranks.RANKS
    assert matched(merged) == {kind: ranks.RANKS * n for kind, n in SITES.items()}
    assert len({site.id for site in merged.sites}) == len(merged.sites)
    assert {site.module.split(".")[1] for site in merged.sites} == {"0", "1"}
    assert "rank.[0-1].[0-1].up" in str(merged)  # one row
    own = fast.report.calls
    if native_missing is None:
        assert {op: sum(calls.values()) for op, calls in own.items()} == SITES
        assert {op: sum(calls.values()) for op, calls in merged.calls.items()} == matched(merged)
    fast(x())
    assert merged.parts[f"rank.{mesh.get_rank()}"].calls == own  # as it was


def test_reports_of_all_ranks_as_one():
    ranks.run(reports_of_all_ranks)


def reports_that_differ(mesh):
    """A rank whose model is of a dtype that no kernel takes."""
    dtype = (BF16, torch.float64)[mesh.get_rank()]
    fast = fxrewrite.rewrite(model().to(dtype))
    fast(x().to(dtype))
    merged = fast.report.gather()
    assert matched(merged) == SITES
    assert {site.module.split(".")[1] for site in merged.rejected} == {"1"}
    assert all(site.reason for site in merged.rejected)


def test_reports_that_differ():
    ranks.run(reports_that_differ)

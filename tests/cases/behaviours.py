"""State, hooks, gradients, threads and modes: what must not change around the numbers."""

from __future__ import annotations

import copy
import io
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.modules import fill_, noise

from .case import BF16, FP32, Function, attention, behaviour, qkv


class Block(nn.Module):
    """Tied input and output weights, an attention, dropout that follows the training flag."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(40, 32)
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 40, bias=False)
        self.out.weight = self.embed.weight
        self.dropout = dropout
        fill_(self)
        self.eval()

    def forward(self, ids):
        x = self.embed(ids)
        q, k, v = self.qkv(x).chunk(3, -1)
        p = F.dropout((q @ k.mT * 0.2).softmax(-1), self.dropout, self.training)
        return self.out(x + p @ v)


IDS = torch.arange(24).reshape(2, 12) % 40


def close(got: Tensor, want: Tensor, limit: float = 1e-5) -> None:
    assert got.shape == want.shape
    difference = ((got.double() - want.double()).norm() / want.double().norm()).item()
    assert difference <= limit, f"relative difference {difference:.3g} > {limit}"


def calling(function, *args):
    with torch.no_grad():
        return function(*args)


@behaviour
def weights_updated_in_place_are_seen(rewrite):
    model = Block()
    new = calling(rewrite, model, (IDS,))
    before = calling(new, IDS)
    with torch.no_grad():
        model.qkv.weight.mul_(1.5)
        model.embed.weight.add_(0.1)
    after = calling(new, IDS)
    close(after, calling(model, IDS))
    assert (after - before).abs().max() > 1e-2


@behaviour
def tied_weights_stay_tied(rewrite):
    model = Block()
    new = calling(rewrite, model, (IDS,))
    assert model.out.weight is model.embed.weight
    assert new.out.weight is new.embed.weight
    names = [name for name, _ in new.named_parameters()]
    assert names == [name for name, _ in model.named_parameters()]


@behaviour
def state_dict_goes_both_ways(rewrite):
    model, other = Block(), Block()
    fill_(other, seed=9)
    new = calling(rewrite, model, (IDS,))
    assert list(new.state_dict()) == list(model.state_dict())
    new.load_state_dict(other.state_dict())
    close(calling(new, IDS), calling(other, IDS))


@behaviour
def deep_copies_are_independent(rewrite):
    model = Block()
    new = calling(rewrite, model, (IDS,))
    want = calling(new, IDS).clone()
    twin = copy.deepcopy(new)
    close(calling(twin, IDS), want)
    with torch.no_grad():
        twin.qkv.weight.zero_()
        twin.embed.weight.mul_(3.0)
    assert torch.equal(calling(new, IDS), want)
    assert (calling(twin, IDS) - want).abs().max() > 1e-2


@behaviour
def saved_state_loads_into_the_plain_model(rewrite):
    model = Block()
    new = calling(rewrite, model, (IDS,))
    file = io.BytesIO()
    torch.save(new.state_dict(), file)
    file.seek(0)
    plain = Block()
    fill_(plain, seed=9)
    plain.load_state_dict(torch.load(file))
    close(calling(new, IDS), calling(plain, IDS))


@behaviour
def forward_hooks_run(rewrite):
    model, calls = Block(), []
    model.qkv.register_forward_hook(lambda module, args, out: out * 2.0)
    model.register_forward_pre_hook(lambda module, args: calls.append(1))
    want = calling(model, IDS)
    new = calling(rewrite, model, (IDS,))
    calls.clear()
    close(calling(new, IDS), want)
    assert len(calls) == 1


@behaviour
def a_hook_added_later_runs(rewrite):
    model = Block()
    new = calling(rewrite, model, (IDS,))
    before = calling(new, IDS)
    new.register_forward_hook(lambda module, args, out: out + 1.0)
    close(calling(new, IDS), before + 1.0)


@behaviour
def gradients_are_those_of_eager(rewrite):
    model, twin = Block(), Block()
    new = rewrite(twin, (IDS,))
    for m in (model, new):
        m(IDS).square().mean().backward()
    for (name, a), (_, b) in zip(model.named_parameters(), twin.named_parameters(), strict=True):
        assert b.grad is not None, f"{name} got no gradient"
        close(b.grad, a.grad, 1e-4)


@behaviour
def an_input_that_needs_a_gradient_gets_it(rewrite):
    model = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16)).eval().requires_grad_(False)
    fill_(model)
    new = calling(rewrite, model, (noise(4, 16),))
    grads = []
    for m in (model, new):
        x = noise(4, 16).requires_grad_()
        m(x).square().mean().backward()
        grads.append(x.grad)
    close(grads[1], grads[0], 1e-4)


@behaviour
def training_flag_switches_dropout(rewrite):
    model = Block(dropout=0.5)
    want = calling(model, IDS)
    new = calling(rewrite, model, (IDS,))
    close(calling(new, IDS), want)
    new.train()
    one, two = calling(new, IDS), calling(new, IDS)
    assert (one - two).abs().max() > 1e-3, "dropout is not active after train()"
    new.eval()
    close(calling(new, IDS), want)


@behaviour
def active_dropout_draws_what_eager_draws(rewrite):
    model = Block(dropout=0.5).train()
    torch.manual_seed(5)
    want = calling(model, IDS)
    new = calling(rewrite, model, (IDS,))
    torch.manual_seed(5)
    close(calling(new, IDS), want)


@behaviour
def rewriting_draws_no_random_numbers(rewrite):
    model = Block(dropout=0.5).train()
    torch.manual_seed(5)
    want = torch.rand(4)
    torch.manual_seed(5)
    calling(rewrite, model, (IDS,))
    assert torch.equal(torch.rand(4), want)


@behaviour
def other_shapes_after_the_capture(rewrite):
    model = Block()
    new = calling(rewrite, model, (IDS,))
    for shape in ((1, 1), (2, 12), (5, 3), (3, 24), (1, 40)):
        ids = torch.arange(shape[0] * shape[1]).reshape(shape) % 40
        close(calling(new, ids), calling(model, ids))


@behaviour
def both_branches_of_a_condition(rewrite):
    model = Function(lambda m, q, k, v: attention(q, k, v) if q.sum() > 0 else -attention(k, q, v))
    q, k, v = qkv(FP32)
    new = calling(rewrite, model, (q, k, v))
    for sign in (1.0, -1.0):
        args = (q.abs() * sign, k, v)
        close(calling(new, *args), calling(model, *args))


@behaviour
def a_scale_tensor_is_not_baked_in(rewrite):
    model = Function(lambda m, q, k, v: attention(q, k, v, m.scale), scale=torch.tensor(0.1))
    args = qkv(FP32)
    new = calling(rewrite, model, args)
    close(calling(new, *args), calling(model, *args))
    model.scale.fill_(0.9)
    close(calling(new, *args), calling(model, *args))


@behaviour
def errors_are_those_of_eager(rewrite):
    model = nn.Sequential(nn.Linear(16, 8), nn.Linear(8, 4)).eval()
    new = calling(rewrite, model, (noise(3, 16),))
    calling(new, noise(3, 16))
    for module in (model, new):
        with pytest.raises(RuntimeError, match=r"shape|size|15"):
            calling(module, noise(3, 15))


@behaviour
def threads_share_a_rewritten_module(rewrite):
    model = Block()
    new = calling(rewrite, model, (IDS,))
    want = calling(model, IDS)
    calling(new, IDS)
    problems: list[str] = []

    def work():
        try:
            for _ in range(10):
                close(calling(new, IDS), want)
        except BaseException as error:
            problems.append(repr(error))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not problems, problems[0]


@behaviour
def autocast_around_the_call(rewrite):
    model = Block()
    new = calling(rewrite, model, (IDS,))
    with torch.autocast("cpu", dtype=BF16):
        want, got = calling(model, IDS), calling(new, IDS)
    assert got.dtype is want.dtype
    close(got, want, 2e-2)


@behaviour
def rewriting_twice_is_harmless(rewrite):
    model = Block()
    want = calling(model, IDS)
    one = calling(rewrite, model, (IDS,))
    two = calling(rewrite, model, (IDS,))
    close(calling(one, IDS), want)
    close(calling(two, IDS), want)
    close(calling(model, IDS), want)

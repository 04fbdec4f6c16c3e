"""Our own cases. A value case is a builder of (module, args, kwargs): its rewritten outputs must hold the
contract against eager and float64, its inputs and state must be left as eager leaves them, and kinds named
in ``never`` must not be matched. A behaviour case is a function that gets ``rewrite`` and asserts."""

from __future__ import annotations

import copy
import dataclasses
import io
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.modules import fill_, noise

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32
INF = float("inf")


@dataclasses.dataclass(frozen=True)
class Case:
    name: str
    build: Callable[[], tuple[nn.Module, tuple, dict[str, Any]]]
    never: tuple[str, ...] = ()


VALUES: dict[str, Case] = {}
BEHAVIOURS: dict[str, Callable[[Callable[..., Any]], None]] = {}


def value(never: tuple[str, ...] = ()):
    def register(build):
        VALUES[build.__name__] = Case(build.__name__, build, never)
        return build

    return register


def behaviour(check):
    BEHAVIOURS[check.__name__] = check
    return check


class Function(nn.Module):
    """A module whose forward is a plain function of (module, *inputs)."""

    def __init__(self, function, **tensors):
        super().__init__()
        self.function = function
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def qkv(dtype=BF16, batch=2, heads=3, queries=12, keys=12, width=32):
    shapes = ((queries, 0), (keys, 1), (keys, 2))
    return tuple(noise(batch, heads, length, width, seed=seed, dtype=dtype) for length, seed in shapes)


def attention(q, k, v, scale=0.2, mask=None):
    scores = q @ k.transpose(-2, -1) * scale
    return (scores if mask is None else scores + mask).softmax(-1) @ v


# ---------------------------------------------------------------- attention: what is computed


@value(never=("sdpa",))
def softmax_over_queries():
    return Function(lambda m, q, k, v: (q @ k.mT * 0.2).softmax(-2) @ v), qkv(), {}


@value(never=("sdpa",))
def softmax_over_heads():
    return Function(lambda m, q, k, v: (q @ k.mT * 0.2).softmax(1) @ v), qkv(), {}


@value()
def softmax_over_the_last_of_four_dims_by_number():
    return Function(lambda m, q, k, v: torch.softmax(q @ k.transpose(2, 3) / 6.0, dim=3) @ v), qkv(), {}


@value()
def scale_differs_by_head():
    scale = torch.tensor([0.05, 0.2, 0.7]).view(3, 1, 1).to(BF16)
    return Function(lambda m, q, k, v: attention(q, k, v, m.scale), scale=scale), qkv(), {}


@value()
def scale_of_each_query():
    scale = torch.linspace(0.01, 0.4, 12).view(12, 1).to(BF16)
    return Function(lambda m, q, k, v: attention(q, k, v, m.scale), scale=scale), qkv(), {}


@value()
def scale_after_the_mask():
    bias = noise(12, 12, seed=5, dtype=BF16) * 4
    return Function(lambda m, q, k, v: ((q @ k.mT + m.bias) * 0.2).softmax(-1) @ v, bias=bias), qkv(), {}


@value()
def negative_scale():
    return Function(lambda m, q, k, v: attention(q, k, v, -0.3)), qkv(FP32), {}


@value()
def key_is_not_transposed():
    def forward(m, q, k, v):  # legal because there are as many keys as the head is wide
        return (q @ k * 0.2).softmax(-1) @ v

    return Function(forward), qkv(queries=12, keys=32, width=32), {}


@value()
def probabilities_used_twice():
    def forward(m, q, k, v):
        p = (q @ k.mT * 0.2).softmax(-1)
        return p @ v, p.amax(-1)

    return Function(forward), qkv(FP32), {}


@value()
def scores_used_twice():
    def forward(m, q, k, v):
        scores = q @ k.mT * 0.2
        return scores.softmax(-1) @ v + scores.mean(-1, keepdim=True)

    return Function(forward), qkv(FP32), {}


@value()
def values_are_the_keys():
    return Function(lambda m, q, k: attention(q, k, k)), qkv()[:2], {}


@value()
def masks_of_each_broadcast():
    shapes = ((12, 12), (1, 1, 12, 12), (2, 1, 1, 12), (1, 3, 12, 12), (2, 3, 12, 12), (12,), (12, 1))

    def forward(m, q, k, v, *masks):
        outs = [attention(q, k, v, mask=mask) for mask in masks]
        outs += [F.scaled_dot_product_attention(q, k, v, mask) for mask in masks if mask.dim() != 1]
        outs += [F.scaled_dot_product_attention(q, k, v, mask > -1) for mask in masks if mask.dim() != 1]
        return tuple(outs)

    masks = tuple(noise(*shape, seed=20 + i, dtype=BF16) for i, shape in enumerate(shapes))
    return Function(forward), (*qkv(), *masks), {}


@value()
def rows_without_any_key():
    def forward(m, q, k, v, keep):
        scores = (q @ k.mT * 0.2).masked_fill(~keep, -INF)
        return scores.softmax(-1) @ v, F.scaled_dot_product_attention(q, k, v, keep)

    keep = torch.ones(12, 12, dtype=torch.bool).tril(-1)
    keep[7] = False
    return Function(forward), (*qkv(), keep), {}


@value()
def rows_masked_by_the_lowest_number():
    def forward(m, q, k, v):
        low = torch.full((12, 12), torch.finfo(q.dtype).min, dtype=q.dtype).tril(-1)
        return attention(q, k, v, mask=low + low.flip(0, 1))

    return Function(forward), qkv(FP32), {}


@value()
def not_a_number_in_one_query_key_and_value():
    q, k, v = qkv()
    q[0, 0, 3, 1] = float("nan")
    k[1, 1, 4, 0] = float("nan")
    v[1, 2, 5, 2] = INF
    # The framework's fused call gives numbers for the query that is not one; only the formula tells.
    return (
        Function(
            lambda m, q, k, v: (attention(q, k, v), F.scaled_dot_product_attention(q.nan_to_num(), k, v))
        ),
        (q, k, v),
        {},
    )


@value()
def scores_overflow_half_precision():
    q, k, v = qkv(FP16)
    return Function(lambda m, q, k, v: (q @ k.mT).softmax(-1) @ v), (q * 60, k * 60, v), {}


@value()
def causal_with_fewer_and_more_queries_than_keys():
    def forward(m, q, k, v):
        short, long = q[:, :, :5], torch.cat([q, q], 2)
        return tuple(F.scaled_dot_product_attention(t, k, v, is_causal=True) for t in (short, q, long))

    return Function(forward), qkv(), {}


@value()
def causal_by_hand_aligned_to_the_end():
    def forward(m, q, k, v):
        keep = torch.ones(5, 12, dtype=torch.bool).tril(7)
        return F.scaled_dot_product_attention(q[:, :, :5], k, v, keep)

    return Function(forward), qkv(), {}


@value()
def empty_batch_and_single_key():
    def forward(m, q, k, v):
        empty, one = slice(0, 0), slice(0, 1)
        return attention(q[empty], k[empty], v[empty]), attention(q, k[:, :, one], v[:, :, one])

    return Function(forward), qkv(), {}


@value()
def strided_operands():
    def forward(m, q, k, v):  # stored as (batch, head_dim, length, heads)
        q, k, v = (t.permute(0, 3, 2, 1) for t in (q, k, v))
        return attention(q, k, v), F.scaled_dot_product_attention(q, k, v)

    return Function(forward), tuple(t.permute(0, 3, 2, 1).contiguous() for t in qkv()), {}


# ---------------------------------------------------------------- in-place operations


@value()
def keys_overwritten_after_the_scores():
    def forward(m, q, k, v):
        k = k.clone()
        scores = q @ k.mT * 0.2
        k.zero_()
        return scores.softmax(-1) @ v + k

    return Function(forward), qkv(), {}


@value()
def values_overwritten_through_a_view():
    def forward(m, q, k, v):
        v = v.clone()
        p = (q @ k.mT * 0.2).softmax(-1)
        v[:, :, ::2] = 1.0
        return p @ v

    return Function(forward), qkv(), {}


@value()
def inputs_mutated():
    def forward(m, q, k, v):
        out = attention(q, k, v)
        v.mul_(0.5)
        q[:, :, 0] = 7.0
        return out, attention(q, k, v)

    return Function(forward), qkv(FP32), {}


@value()
def weight_overwritten_between_two_linears():
    def forward(m, x):
        w = m.w.clone()
        y = F.linear(x, w)
        w.neg_()
        return F.linear(y, w)

    return Function(forward, w=noise(32, 32, seed=3, dtype=BF16)), (noise(4, 32, seed=4, dtype=BF16),), {}


# ---------------------------------------------------------------- linear


@value()
def square_weights_both_ways_round():
    def forward(m, x):
        return x @ m.w, x @ m.w.t(), F.linear(x, m.w), F.linear(x, m.w.t()), m.w @ x.mT

    return Function(forward, w=noise(24, 24, seed=3, dtype=BF16)), (noise(2, 7, 24, seed=4, dtype=BF16),), {}


@value()
def computed_weights():
    def forward(m, x):
        a = F.linear(x, m.w + 0.1 * m.u, m.u[0])
        b = F.linear(x, torch.cat([m.w[:8], m.u[8:]]))
        c = F.linear(x, m.w * (m.u > 0))
        return a, b, c, F.linear(x, x[0, :3])

    tensors = {"w": noise(24, 24, seed=3, dtype=BF16), "u": noise(24, 24, seed=5, dtype=BF16)}
    return Function(forward, **tensors), (noise(2, 7, 24, seed=4, dtype=BF16),), {}


@value()
def odd_sizes_ranks_and_alpha_beta():
    def forward(m, x):
        rank1, empty = x[0, 0], x[:0]
        product = torch.addmm(m.b, x[0], m.w.t(), beta=0.5, alpha=-2.0)
        return F.linear(rank1, m.w), F.linear(empty, m.w, m.b), F.linear(x[None], m.w, m.b), product

    tensors = {"w": noise(13, 33, seed=3, dtype=BF16), "b": noise(13, seed=5, dtype=BF16)}
    return Function(forward, **tensors), (noise(3, 5, 33, seed=4, dtype=BF16),), {}


# ---------------------------------------------------------------- fp8


def fp8_weight(rows, columns, seed=3):
    return noise(rows, columns, seed=seed).to(torch.float8_e4m3fn)


@value()
def fp8_scale_of_each_input_column():
    def forward(m, x):  # cannot move to the output
        return F.linear(x, m.w.to(x.dtype) * m.s.to(x.dtype))

    tensors = {"w": fp8_weight(24, 32), "s": torch.linspace(0.01, 2.0, 32)}
    return Function(forward, **tensors), (noise(5, 32, seed=4, dtype=BF16),), {}


@value()
def fp8_square_weight_with_a_row_or_column_scale():
    def forward(m, x):
        w = m.w.to(x.dtype)
        return F.linear(x, w * m.s), F.linear(x, w * m.s[:, None]), x @ (w * m.s), F.linear(x, w) * m.s

    tensors = {"w": fp8_weight(32, 32), "s": torch.linspace(0.01, 2.0, 32).to(BF16)}
    return Function(forward, **tensors), (noise(5, 32, seed=4, dtype=BF16),), {}


@value()
def fp8_not_a_number_and_extremes_in_the_weight():
    weight = fp8_weight(24, 32)
    bits = weight.view(torch.uint8)
    bits[3, 5], bits[4, 6], bits[5, 7] = 0x7F, 0x7E, 0x01  # NaN, the largest, the smallest subnormal
    forward = lambda m, x: F.linear(x, m.w.to(x.dtype) * m.s.to(x.dtype))  # noqa: E731
    return Function(forward, w=weight, s=torch.tensor(0.5)), (noise(5, 32, seed=4, dtype=BF16),), {}


@value()
def fp8_scale_is_an_input():
    forward = lambda m, x, s: F.linear(x, m.w.to(x.dtype) * s)  # noqa: E731
    return (
        Function(forward, w=fp8_weight(24, 32)),
        (noise(5, 32, seed=4, dtype=BF16), torch.tensor(0.3, dtype=BF16)),
        {},
    )


# ---------------------------------------------------------------- linear attention


def relu_attention(q, k, v, eps):
    q, k = F.relu(q), F.relu(k)
    padded = F.pad(v, (0, 1), value=1.0)
    out = q @ (k.mT @ padded)
    return out[..., :-1] / (out[..., -1:] + eps)


@value()
def linear_attention_with_queries_that_see_nothing():
    q, k, v = qkv(FP32)
    q[0, 0, 3] = -1.0
    k[1, 1] = -1.0
    return Function(lambda m, q, k, v: relu_attention(q, k, v, 1e-6)), (q, k, v), {}


@value(never=("linear_attention",))
def linear_attention_without_the_second_relu():
    def forward(m, q, k, v):
        out = F.relu(q) @ (k.mT @ F.pad(v, (0, 1), value=1.0))
        return out[..., :-1] / (out[..., -1:].abs() + 1.0)

    return Function(forward), qkv(FP32), {}


# ---------------------------------------------------------------- structure


@value()
def keywords_dicts_and_nothing_in_the_output():
    def forward(m, q, *, k, v, flag=True, extra=None):
        out = attention(q, k, v)
        return {"out": [out, None], "n": 3, "extra": extra, "kept": q if flag else None}

    q, k, v = qkv()
    return Function(forward), (q,), {"v": v, "k": k, "extra": "text"}


@value()
def branch_on_the_data():
    def forward(m, q, k, v):
        if q.sum() > k.sum():
            return attention(q, k, v)
        return attention(q, k, v) - 1.0

    return Function(forward), qkv(FP32), {}


# ---------------------------------------------------------------- behaviour


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

"""Every reading of every node says what the node computes, through whatever view it is asked for."""

from __future__ import annotations

import itertools
import random

import pytest
import torch
import torch.nn.functional as F

from fxrewrite.matching.elementwise import constant_number
from fxrewrite.matching.terms import readings
from fxrewrite.matching.value import View, plain
from tests.matching.terms64 import Values
from tests.support.graphs import node, returned, trace

aten = torch.ops.aten


def r(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed + len(shape) + sum(shape))
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def keep(*shape):
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5


# name: (function, inputs, how its result must be readable as it is)
CASES = {
    # products
    "matmul": (torch.matmul, (r(2, 3, 4, 5), r(2, 3, 5, 6)), "matmul"),
    "matmul, batch broadcast": (torch.matmul, (r(2, 1, 4, 5), r(3, 5, 6)), "matmul"),
    "matmul, batch of one side": (torch.matmul, (r(2, 3, 4, 5), r(5, 6)), "matmul linear"),
    "matmul of a vector": (torch.matmul, (r(5), r(5, 6)), "linear"),
    "matmul with a vector": (torch.matmul, (r(4, 5), r(5)), ""),
    "mm": (torch.mm, (r(4, 5), r(5, 6)), "matmul linear"),
    "bmm": (torch.bmm, (r(3, 4, 5), r(3, 5, 6)), "matmul"),
    "transposed operands": (lambda a, b: a.mT @ b.transpose(1, 2), (r(3, 5, 4), r(3, 6, 5)), "matmul"),
    "einsum, scores": (
        lambda q, k: torch.einsum("bhid,bhjd->bhij", q, k), (r(2, 3, 4, 5), r(2, 3, 6, 5)), "matmul"
    ),
    "einsum, tokens before heads": (
        lambda q, k: torch.einsum("bihd, bjhd -> bhij", q, k), (r(2, 4, 3, 5), r(2, 6, 3, 5)), "matmul"
    ),
    "einsum, output turned": (
        lambda q, k: torch.einsum("id,jd->ji", q, k), (r(4, 5), r(6, 5)), "matmul projection"
    ),
    "einsum, context": (
        lambda p, v: torch.einsum("bhij,bjhd->bihd", p, v), (r(2, 3, 4, 6), r(2, 6, 3, 5)), ""
    ),
    "einsum, a dim of one side summed": (
        lambda a, b: torch.einsum("bcij,bjk->bik", a, b), (r(2, 7, 3, 4), r(2, 4, 5)), ""
    ),
    "einsum, two dims summed": (
        lambda a, b: torch.einsum("bijl,bjlk->bik", a, b), (r(2, 3, 4, 2), r(2, 4, 2, 5)), ""
    ),
    "einsum, a diagonal": (lambda a, b: torch.einsum("ii,ij->ij", a, b), (r(3, 3), r(3, 4)), ""),
    "einsum, three operands": (
        lambda a, b: torch.einsum("ij,jk,kl->il", a, b, b.mT), (r(3, 4), r(4, 5)), ""
    ),
    "einsum, ellipsis": (
        lambda a, b: torch.einsum("...ij,...jk->...ik", a, b), (r(2, 3, 4), r(2, 4, 5)), "matmul"
    ),
    "einsum, ellipses of several ranks": (
        lambda a, b: torch.einsum("...ij,...jk->...ik", a, b), (r(7, 2, 3, 4), r(2, 4, 5)), "matmul"
    ),
    "einsum, ellipsis of nothing": (
        lambda a, b: torch.einsum("...ij,jk->...ik", a, b), (r(3, 4), r(4, 5)), "matmul projection"
    ),
    "einsum, a layer": (
        lambda x, w: torch.einsum("...d,nd->...n", x, w), (r(2, 3, 4), r(5, 4)), "matmul projection"
    ),
    "einsum, to heads": (
        lambda x, w: torch.einsum("btd,dhk->bhtk", x, w), (r(2, 3, 4), r(4, 5, 6)), "matmul projection"
    ),
    "tensordot": (lambda x, w: torch.tensordot(x, w, 2), (r(2, 3, 4), r(3, 4, 5)), "projection"),
    "conv2d": (F.conv2d, (r(2, 4, 3, 5), r(6, 4, 1, 1), r(6)), "projection"),
    "conv2d, kernel of 3": (F.conv2d, (r(2, 4, 3, 5), r(6, 4, 3, 3)), ""),
    "tanh": (torch.tanh, (r(2, 3),), "tanh"),
    "cat": (lambda a, b: torch.cat([a, b], -1), (r(2, 3), r(2, 1)), "cat"),
    "cat of three": (lambda a, b: torch.cat([a, b, a], -1), (r(2, 3), r(2, 1)), ""),
    "softmax less the maximum": (
        lambda x: (x - x.amax(-1, keepdim=True)).softmax(-1), (r(2, 3),), "softmax"
    ),
    "addmm": (torch.addmm, (r(6), r(4, 5), r(5, 6)), "add linear"),
    "addmm, alpha and beta": (
        lambda b, x, w: torch.addmm(b, x, w, beta=0.5, alpha=2), (r(6), r(4, 5), r(5, 6)), "add"
    ),
    "addmm, beta 0": (lambda b, x, w: torch.addmm(b, x, w, beta=0), (r(6), r(4, 5), r(5, 6)), "matmul"),
    "addmm, a matrix added": (torch.addmm, (r(4, 6), r(4, 5), r(5, 6)), "add"),
    "baddbmm": (
        lambda m, a, b: torch.baddbmm(m, a, b, beta=1, alpha=0.3), (r(1, 4, 6), r(3, 4, 5), r(3, 5, 6)), "add"
    ),
    "baddbmm, beta 0": (
        lambda m, a, b: torch.baddbmm(m, a, b, beta=0, alpha=0.3), (r(3, 4, 6), r(3, 4, 5), r(3, 5, 6)), "mul"
    ),
    "linear": (F.linear, (r(2, 4, 5), r(6, 5), r(6)), "linear"),
    "linear without bias": (F.linear, (r(2, 4, 5), r(6, 5)), "linear"),
    # attention
    "fused": (F.scaled_dot_product_attention, (r(2, 3, 4, 8), r(2, 3, 5, 8), r(2, 3, 5, 8)), "sdpa"),
    "fused, flags": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3, enable_gqa=True),
        (r(2, 4, 5, 8), r(2, 2, 5, 8), r(2, 2, 5, 8)), "sdpa",
    ),
    "fused, keywords": (
        lambda q, k, v, m: F.scaled_dot_product_attention(query=q, value=v, key=k, attn_mask=m),
        (r(2, 3, 4, 8), r(2, 3, 5, 8), r(2, 3, 5, 8), keep(4, 5)), "sdpa",
    ),
    # elementwise
    "add": (lambda a, b: a + b, (r(2, 3, 4), r(3, 4)), "add"),
    "add, both broadcast": (lambda a, b: a + b, (r(2, 1, 4), r(3, 1)), "add"),
    "add, alpha": (lambda a, b: torch.add(a, b, alpha=3), (r(2, 3), r(3)), "add"),
    "add a number": (lambda a: a + 2, (r(2, 3),), "add"),
    "a number first": (lambda a: 2 + a, (r(2, 3),), "add"),
    "add, called directly": (lambda a: aten.add.Tensor(a, 2, alpha=3), (r(2, 3),), "add"),
    "sub": (lambda a, b: a - b, (r(2, 3, 4), r(4)), "sub"),
    "sub, alpha": (lambda a, b: torch.sub(a, b, alpha=3), (r(2, 3), r(3)), "sub"),
    "a number minus": (lambda a: 2 - a, (r(2, 3),), ""),
    "mul": (lambda a, b: a * b, (r(2, 3, 4), r(3, 1)), "mul"),
    "mul by a number": (lambda a: 0.125 * a, (r(2, 3),), "mul"),
    "mul by a truth": (lambda a: a * True, (r(2, 3),), "mul"),
    "div": (lambda a, b: a / b, (r(2, 3, 4), r(3, 1)), "div"),
    "div by a number": (lambda a: a / 8, (r(2, 3),), "mul"),
    "div by 0": (lambda a: a / 0, (r(2, 3),), ""),
    "a number over": (lambda a: 8 / a, (r(2, 3),), "mul div"),
    "reciprocal": (lambda a, b: a * b.reciprocal(), (r(2, 3), r(3)), "mul div"),
    "reciprocal times 1": (lambda a, b: (1 / b) * a, (r(2, 3), r(3)), "mul div"),
    "relu": (lambda a: a.relu(), (r(2, 3),), "relu activation"),
    "gelu": (lambda a: F.gelu(a), (r(2, 3),), "activation"),
    "gelu by tanh": (lambda a: F.gelu(a, approximate="tanh"), (r(2, 3),), "activation"),
    "silu": (lambda a: F.silu(a), (r(2, 3),), "activation"),
    "silu written": (lambda a: a * a.sigmoid(), (r(2, 3),), "mul activation"),
    "gated by another": (lambda a, b: a * b.sigmoid(), (r(2, 3), r(2, 3)), "mul"),
    "gated by a part of itself": (lambda a: a * a[:1].sigmoid(), (r(2, 3),), "mul"),
    "first half": (lambda a: a.chunk(2, -1)[0], (r(3, 6),), "half"),
    "second half": (lambda a: a.split(3, 1)[1], (r(2, 6),), "half"),
    "second half of unequal parts": (lambda a: a.split([2, 4], 1)[1], (r(2, 6),), ""),
    "half of another dim": (lambda a: a.chunk(2)[0], (r(6, 2),), ""),
    "second half, sliced": (lambda a: a[..., 3:], (r(2, 6),), "slice half"),
    "first half, sliced": (lambda a: a[:, :-3], (r(2, 6),), "slice half"),
    "the middle half": (lambda a: a[..., 1:4], (r(2, 6),), "slice"),
    "clamp_min": (lambda a: a.clamp_min(0), (r(2, 3),), "at_least relu"),
    "clamp": (lambda a: a.clamp(min=0.0), (r(2, 3),), "at_least relu"),
    "clamp to both sides": (lambda a: a.clamp(0, 1), (r(2, 3),), ""),
    "clamp elsewhere": (lambda a: a.clamp(min=0.1), (r(2, 3),), "at_least"),
    "clamp above": (lambda a: a.clamp(max=0), (r(2, 3),), ""),
    "exp": (lambda a: a.exp(), (r(2, 3),), "exp"),
    "exp of log_softmax": (lambda a: a.log_softmax(0).exp(), (r(2, 3),), "exp softmax"),
    "exp less logsumexp": (
        lambda a: (a - a.logsumexp(1, keepdim=True)).exp(), (r(2, 3, 4),), "exp softmax"
    ),
    "exp less logsumexp, unsqueezed": (
        lambda a: (a - a.logsumexp(1).unsqueeze(1)).exp(), (r(2, 3, 4),), "exp softmax"
    ),
    "exp less logsumexp, moved": (lambda a: (a - a.logsumexp(1)).exp(), (r(3, 3),), "exp"),
    "divided late": (
        lambda a, v: (lambda e: e @ v / e.sum(-1, keepdim=True))((a - a.amax(-1, keepdim=True)).exp()),
        (r(2, 3, 4), r(2, 4, 5)), "div weighted_mean"
    ),
    "divided late, reciprocal": (
        lambda a, v: (lambda e: e @ v * (1 / e.sum(-1)[..., None]))((a - a.amax(-1, keepdim=True)).exp()),
        (r(2, 3, 4), r(2, 4, 5)), "mul div weighted_mean"
    ),
    "divided late, other dim": (
        lambda a, v: (lambda e: e @ v / e.sum(-2, keepdim=True))((a - a.amax(-1, keepdim=True)).exp()),
        (r(2, 3, 3), r(2, 3, 3)), "div"
    ),
    "exp of a logarithm": (lambda a: a.exp().log().exp(), (r(2, 3),), "exp"),
    "masked_fill": (lambda a, m: a.masked_fill(m, -9.0), (r(2, 3, 4), keep(3, 4)), "masked_fill"),
    "masked_fill, mask wider": (lambda a, m: a.masked_fill(m, -9.0), (r(4), keep(3, 4)), "masked_fill"),
    "masked_fill, 0-d value": (
        lambda a, m: a.masked_fill(m, torch.full((), -9.0)), (r(2, 3), keep(2, 3)), "masked_fill"
    ),
    "masked_fill, unknown value": (lambda a, m, v: a.masked_fill(m, v), (r(2, 3), keep(2, 3), r()), ""),
    "where": (lambda c, a, b: torch.where(c, a, b), (keep(3, 4), r(2, 3, 4), r(4)), "where"),
    "where, number last": (lambda c, a: torch.where(c, a, -9.0), (keep(3, 4), r(2, 3, 4)), "where"),
    "where, number first": (lambda c, a: torch.where(c, -9.0, a), (keep(3, 4), r(2, 3, 4)), "where"),
    "where, filled": (
        lambda c, a: torch.where(c, a, torch.full([], -9.0)), (keep(3, 4), r(2, 3, 4)), "where"
    ),
    # along dims
    "softmax": (lambda a: a.softmax(-1), (r(2, 3, 4),), "softmax"),
    "softmax, dim from the left": (lambda a: a.softmax(1), (r(2, 3, 4),), "softmax"),
    "softmax, dtype": (lambda a: F.softmax(a, -1, dtype=torch.float64), (r(2, 3, 4),), "softmax"),
    "_softmax": (lambda a: aten._softmax(a, 0, False), (r(2, 3, 4),), "softmax"),
    "_safe_softmax": (lambda a: aten._safe_softmax(a, -1), (r(2, 3),), ""),
    "log_softmax": (lambda a: a.log_softmax(-1), (r(2, 3),), ""),
    "sum": (lambda a: a.sum(-2, keepdim=True), (r(2, 3, 4),), "sum"),
    "logsumexp": (lambda a: a.logsumexp(-2, keepdim=True), (r(2, 3, 4),), "logsumexp"),
    "logsumexp of two dims": (lambda a: a.logsumexp((0, 1), keepdim=True), (r(2, 3, 4),), ""),
    "sigmoid": (lambda a: a.sigmoid(), (r(3, 4),), "sigmoid"),
    "sum of two dims": (lambda a: a.sum((0, 1), keepdim=True), (r(2, 3, 4),), ""),
    "sum, dim gone": (lambda a: a.sum(1), (r(2, 3, 4),), ""),
    "sum of all": (lambda a: a.sum(), (r(2, 3, 4),), ""),
    "pad": (lambda a: F.pad(a, (0, 1), value=1.0), (r(2, 3, 4),), "pad"),
    "pad two dims": (lambda a: F.pad(a, (1, 0, 0, 2)), (r(2, 3, 4),), "pad"),
    "pad, not constant": (lambda a: F.pad(a, (1, 1), mode="reflect"), (r(2, 3, 4),), ""),
    "slice": (lambda a: a[:, 1:3], (r(2, 5, 4),), "slice"),
    "slice, but the last": (lambda a: a[..., :-1], (r(2, 5),), "slice"),
    "slice, the last": (lambda a: a[..., -1:], (r(2, 5),), "slice"),
    "slice, beyond the end": (lambda a: a[2:99], (r(5, 2),), "slice"),
    "slice, before the start": (lambda a: a[-99:2], (r(5, 2),), "slice"),
    "slice, nothing": (lambda a: a[3:3], (r(5, 2),), "slice"),
    "slice, strided": (lambda a: a[::2], (r(5, 2),), ""),
    # shape and dtype
    "cast": (lambda a: a.to(torch.float32), (r(2, 3),), "cast"),
    "cast, type_as": (lambda a, b: a.type_as(b), (r(2, 3), r(1).float()), "cast"),
    "view": (lambda a: a.view(6, 4), (r(2, 3, 4),), "reshape merge"),
    "reshape": (lambda a: a.reshape(2, 12), (r(2, 3, 4),), "reshape merge"),
    "flatten": (lambda a: a.flatten(1), (r(2, 3, 4),), "reshape merge"),
    "unflatten, leading": (lambda a: a.unflatten(0, (2, 3)), (r(6, 5, 4),), "regroup"),
    "unflatten": (lambda a: a.unflatten(0, (2, 3)), (r(6, 4),), "reshape split"),
}  # fmt: skip


def views(item, count=12):
    """The node as it is, and through random rearrangements, inserted and dropped dims."""
    yield plain(item)
    shape = item.meta["val"].shape
    chance = random.Random(str(shape))
    orders = list(itertools.permutations(range(len(shape))))
    for _ in range(count):
        dims = list(chance.choice(orders))
        dims = [d for d in dims if shape[d] != 1 or chance.random() < 0.5]
        for _ in range(chance.choice((0, 0, 1, 2))):
            dims.insert(chance.randint(0, len(dims)), None)
        yield View(item, tuple(dims))


@pytest.mark.parametrize(("function", "inputs", "ops"), CASES.values(), ids=list(CASES))
def test_readings(function, inputs, ops):
    gm = trace(function, *inputs)
    values = Values(gm, *inputs)
    for item in gm.graph.nodes:
        if not isinstance(item.meta.get("val"), torch.Tensor):
            continue
        for view in views(item):
            wanted = values.view(view)
            for term in readings(view):
                assert not {item} & set(term.folded)
                found = values.term(term)
                assert found.shape == wanted.shape, (view.dims, term)
                torch.testing.assert_close(found.to(wanted.dtype), wanted, rtol=1e-12, atol=1e-12)
    assert {term.op for term in readings(plain(returned(gm)))} == set(ops.split())


def test_a_product_is_read_in_either_order_of_its_dims():
    gm = trace(torch.matmul, r(3, 4, 5), r(3, 5, 6))
    product = plain(returned(gm))
    ((first,), (second,)) = readings(product), readings(product.mT)
    assert len(first.args) == 2
    assert [a.node for a in second.args] == [a.node for a in reversed(first.args)]


def test_bounds_of_a_slice_from_both_sides():
    gm = trace(lambda a: a[..., :-1] / a[..., 32:], r(2, 33))
    one, two = gm.graph.find_nodes(op="call_function", target=aten.slice.Tensor)[-2:]
    bounds = lambda n: {(t.attrs["start"], t.attrs["end"]) for t in readings(plain(n))}  # noqa: E731
    assert {(0, -1), (0, 32)} <= bounds(one)
    assert {(-1, None), (32, None)} <= bounds(two)


def test_the_rest_of_a_dim_of_symbolic_size():
    gm = trace(lambda a: a[:, 1:], r(4, 7), dynamic=True)
    (term,) = readings(plain(returned(gm)))
    assert term.attrs == {"dim": -1, "start": 1, "end": None}


def test_constant_numbers():
    def function(x):
        return (
            torch.full([], -1e9, dtype=torch.float16),
            torch.full([1, 1], 0.1, dtype=torch.bfloat16),
            torch.full([2], 3.0),
            torch.scalar_tensor(7),
            x,
        )

    gm = trace(function, r())
    found = [constant_number(n) for n in gm.graph.output_node().args[0]]
    assert found == [float("-inf"), float(torch.tensor(0.1).bfloat16()), None, 7.0, None]
    assert constant_number(3) == 3.0


def test_a_reading_names_what_it_takes_in():
    gm = trace(lambda a, b: a * (1 / b), r(2), r(2))
    division = next(t for t in readings(plain(returned(gm))) if t.op == "div")
    assert {n.name for n in division.folded} == {
        n.name for n in gm.graph.nodes if n.op == "call_function"
    } - {returned(gm).name}
    assert division.args[1].node is node(gm, "b_1")

"""In-place operators made functional: bit-equal to eager, and only where nobody else looks."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from fxrewrite.rewriting.functional import functionalize_fresh_writes, simplify
from tests.support.graphs import text, trace

X, Y = torch.randn(4, 4), torch.randn(4, 4)


def chain(x, y):
    s = x @ y
    s.div_(8)
    s.add_(y)
    s.mul_(0.5)
    s.masked_fill_(y > 0, -9.0)
    return s


def read_before_and_after(x, y):
    s = x @ y
    before = s.sum()
    s.mul_(2)
    between = s.sum()
    s.add_(1)
    return before, between, s.sum(), s


def result_of_the_write_is_used(x, y):
    return (x @ y).mul_(2).add_(y) + 1


def both_names(x, y):
    s = x @ y
    t = s.mul_(2)
    t.add_(1)
    return s + t


def returned_and_written(x, y):
    s = x @ y
    s.add_(1)
    return s, s * 2


def by_itself(x, y):
    s = x @ y
    s.add_(s)
    return s


def tensors_of_the_same_kind(x, y):
    s = x @ y
    s.mul_(torch.full((), 2.0))
    s.add_(y[0])
    return s


def strided(x, y):
    s = (x @ y).t().clone()
    s.mul_(2)
    return s


def read_as_a_view_after(x, y):
    s = x @ y
    s.mul_(2)
    return s.t() + s.float(), s[0]


DONE = [chain, read_before_and_after, result_of_the_write_is_used, both_names, returned_and_written,
        by_itself, tensors_of_the_same_kind, strided, read_as_a_view_after]  # fmt: skip


def view_taken_before(x, y):
    s = x @ y
    v = s.t()
    s.mul_(2)
    return v, s


def view_taken_after(x, y):
    s = x @ y
    s.mul_(2)
    v = s[0]
    v.add_(1)
    return s


def view_written(x, y):
    s = x @ y
    s.t().mul_(2)
    return s


def an_input(x, y):
    x.mul_(2)
    return x @ y


def part_of_an_input(x, y):
    x[0].mul_(2)
    return x @ y


def switched_off_dropout_is_no_copy(x, y):
    s = x @ y
    d = F.dropout(s, 0.1, training=False)
    s.mul_(2)
    return d, s


def another_operator_writes_too(x, y):
    s = x @ y
    s.mul_(2)
    s.tril_()
    s.add_(1)
    return s


def narrower_than_what_is_added(x, y):
    s = (x @ y).bfloat16()
    s.add_(y)
    return s


def numbers_of_one_element(x, y):
    s = x.sum().bfloat16() * 1
    s.add_(y.sum())
    return s


LEFT = [view_taken_before, view_taken_after, view_written, an_input, part_of_an_input,
        switched_off_dropout_is_no_copy, another_operator_writes_too, narrower_than_what_is_added,
        numbers_of_one_element]  # fmt: skip


def writes(gm):
    return [n for n in gm.graph.nodes if n.op == "call_function" and n.target._schema.is_mutable]


def run(function, gm):
    ours, want = gm(X.clone(), Y.clone()), function(X.clone(), Y.clone())
    if not isinstance(want, tuple):
        ours, want = (ours,), (want,)
    for a, b in zip(ours, want, strict=True):
        assert torch.equal(a, b)
        assert (a.dtype, a.stride()) == (b.dtype, b.stride())


@pytest.mark.parametrize("function", DONE)
def test_made_functional(function):
    gm = trace(function, X, Y)
    assert writes(gm)
    functionalize_fresh_writes(gm)
    assert not writes(gm)
    gm.graph.lint()
    run(function, gm)


@pytest.mark.parametrize("function", LEFT)
def test_left_in_place(function):
    gm = trace(function, X, Y)
    before = text(gm)
    functionalize_fresh_writes(gm)
    assert text(gm) == before
    run(function, gm)


def test_inputs_are_still_written_to():
    def function(x, y):
        s = x @ y
        s.mul_(2)
        x.add_(s)
        return s

    gm = trace(function, X, Y)
    functionalize_fresh_writes(gm)
    ours, theirs = X.clone(), X.clone()
    gm(ours, Y)
    function(theirs, Y)
    assert torch.equal(ours, theirs)
    assert "add_.Tensor" in text(gm)
    assert "mul_.Tensor" not in text(gm)


# ------------------------------------------------------------------------------------- unused values


def _targets(function, *inputs):
    gm = trace(function, *inputs)
    simplify(gm)
    return [str(n.target).removeprefix("aten.") for n in gm.graph.nodes if n.op == "call_function"]


def test_unused_values_go():
    def function(x):
        x.exp().sum().view(1)
        return x.relu()

    assert _targets(function, torch.randn(3, 3)) == ["relu.default"]


def test_unused_products_writes_and_random_numbers_stay():
    def function(x, y):
        (x @ y).exp()
        torch.rand(3)
        x.add_(1)
        return y.relu()

    kept = _targets(function, torch.randn(3, 3), torch.randn(3, 3))
    assert [t.partition(".")[0] for t in kept] == ["matmul", "rand", "add_", "relu"]


def test_a_number_as_a_tensor_is_not_written_to():
    kept = _targets(lambda x: x * torch.tensor(8.0), torch.randn(3))
    assert "detach_.default" not in kept


def made_like(x, y):
    s = x @ y
    ones, more = s.new_ones(3, 2), s.new_full((2, 4), 7, dtype=torch.int64)
    return ones, more, torch.zeros_like(s), torch.full_like(s, 2.0, dtype=torch.float64), s.new_zeros(0)


def test_what_is_made_like_a_value_does_not_use_it():
    gm = trace(made_like, X, Y)
    before = gm(X, Y)
    simplify(gm)
    product = next(node for node in gm.graph.nodes if node.target is torch.ops.aten.matmul.default)
    assert not product.users
    for old, new in zip(before, gm(X, Y), strict=True):
        assert (old.dtype, old.shape, old.stride()) == (new.dtype, new.shape, new.stride())
        assert torch.equal(old, new)


def test_like_a_value_of_another_layout_or_by_a_tensor_stays():
    def function(x, y):
        s = x @ y
        return torch.ones_like(s.mT), s.new_full((2,), y[0, 0])

    gm = trace(function, X, Y)
    simplify(gm)
    assert "ones_like" in text(gm)

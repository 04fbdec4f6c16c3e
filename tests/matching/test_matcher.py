"""The matcher: what a pattern finds, and what it must not."""

from __future__ import annotations

import time

import pytest
import torch
import torch.nn.functional as F

from fxrewrite.matching import APPLIED_TO, Match
from fxrewrite.matching.pattern import compile_pattern
from tests.support.graphs import matcher, node, returned, trace

X, Y, Z = torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)


def found(pattern, function, *inputs, dynamic=False):
    """All matches of ``pattern`` at the value that ``function`` returns."""
    gm = function if hasattr(function, "graph") else trace(function, *(inputs or (X, Y, Z)), dynamic=dynamic)
    return list(matcher(gm).match(compile_pattern(pattern), returned(gm)))


def names(match: Match) -> dict[str, object]:
    return {n: getattr(b, "node", b) if b is None or not hasattr(b, "node") else b.node.name
            for n, b in match.bindings.items()}  # fmt: skip


def test_captures():
    (match,) = found(lambda op, a, b: a @ b, lambda x, y, z: x @ y)
    assert names(match) == {"a": "x_1", "b": "y_1"}
    assert match.computed == match.seen == {match.root}
    assert match["a"].is_plain
    assert match.value.node is match.root


def test_commutative_operators_match_both_ways():
    pattern = lambda op, a, b: op.relu(a) + b  # noqa: E731
    assert names(found(pattern, lambda x, y, z: x.relu() + y)[0]) == {"a": "x_1", "b": "y_1"}
    assert names(found(pattern, lambda x, y, z: y + x.relu())[0]) == {"a": "x_1", "b": "y_1"}
    assert len(found(pattern, lambda x, y, z: x.relu() + y.relu())) == 2


def test_a_product_does_not_commute():
    pattern = lambda op, a, b: op.relu(a) @ b  # noqa: E731
    assert found(pattern, lambda x, y, z: x.relu() @ y)
    assert not found(pattern, lambda x, y, z: y @ x.relu())
    assert not found(lambda op, a, b: op.relu(a) / b, lambda x, y, z: y / x.relu())


def test_a_repeated_variable_must_be_the_same_value():
    pattern = lambda op, a, b: (a @ b) + a  # noqa: E731
    assert names(found(pattern, lambda x, y, z: (x @ y) + x)[0]) == {"a": "x_1", "b": "y_1"}
    assert not found(pattern, lambda x, y, z: (x @ y) + z)
    assert not found(pattern, lambda x, y, z: (x @ y) + x.mT)
    assert found(pattern, lambda x, y, z: (x.mT @ y) + x.transpose(0, 1))
    assert found(pattern, lambda x, y, z: (x @ y) + x.contiguous())


def test_constants_are_exact():
    pattern = lambda op, a: op.relu(a) * 2  # noqa: E731
    assert found(pattern, lambda x, y, z: x.relu() * 2)
    assert found(pattern, lambda x, y, z: 2.0 * x.relu())
    assert found(pattern, lambda x, y, z: x.relu() / 0.5)
    assert not found(pattern, lambda x, y, z: x.relu() * 2.0001)
    assert not found(pattern, lambda x, y, z: x.relu() * torch.full((), 2.0))
    assert not found(pattern, lambda x, y, z: x.relu() * y)


def test_attributes_are_exact():
    pattern = lambda op, a: op.softmax(a, dim=-1)  # noqa: E731
    assert found(pattern, lambda x, y, z: x.softmax(1))
    assert found(pattern, lambda x, y, z: x.softmax(-1))
    assert not found(pattern, lambda x, y, z: x.softmax(0))
    padded = lambda op, a: op.pad(a, dim=-1, before=0, after=1, value=1.0)  # noqa: E731
    assert found(padded, lambda x, y, z: F.pad(x, (0, 1), value=1))
    assert not found(padded, lambda x, y, z: F.pad(x, (0, 1)))
    assert not found(padded, lambda x, y, z: F.pad(x, (1, 0), value=1))
    assert not found(padded, lambda x, y, z: F.pad(x, (0, 0, 0, 1), value=1))


def test_none_is_a_constant():
    pattern = lambda op, x, w: op.linear(x, w, None)  # noqa: E731
    assert found(pattern, lambda x, y, z: F.linear(x, y))
    assert not found(pattern, lambda x, y, z: F.linear(x, y, z[0]))


def test_an_optional_argument_binds_none():
    (match,) = found(lambda op, x, w, b: op.linear(x, w, b), lambda x, y, z: F.linear(x, y))
    assert not match.has("b")
    assert match.has("w")
    with pytest.raises(TypeError, match="b is None, not a tensor"):
        match["b"]


def test_numbers():
    pattern = lambda op, a: op.relu(a) * op.number("by")  # noqa: E731
    (match,) = found(pattern, lambda x, y, z: x.relu() * 3)
    assert match.number("by", 1.0) == 3.0
    assert match.number("other", 1.0) == 1.0
    assert not found(pattern, lambda x, y, z: x.relu() * y)


def test_any_of_prefers_the_first():
    pattern = lambda op, a, b: op.any_of(op.relu(a) + b, a + b)  # noqa: E731
    matches = found(pattern, lambda x, y, z: x.relu() + y)
    assert names(matches[0]) == {"a": "x_1", "b": "y_1"}
    assert [names(m)["a"] for m in matches] == ["x_1", "relu", "y_1"]


def test_optional():
    pattern = lambda op, a: op.optional(op.relu(a), bias=lambda s, b: s + b)  # noqa: E731
    assert names(found(pattern, lambda x, y, z: x.relu() + y)[0]) == {"a": "x_1", "b": "y_1"}
    assert names(found(pattern, lambda x, y, z: x.relu())[0]) == {"a": "x_1"}


def scored(op, a, b):
    return op.softmax(
        op.repeat(a @ b, scale=lambda s, by: s * by, bias=lambda s, mask: s + mask), dim=-1
    )  # fmt: skip


def test_repeat_lists_steps_in_the_order_of_the_code():
    (match,) = found(scored, lambda x, y, z: ((x @ y * 2 + z) * 3).softmax(-1))
    assert [step for step, _ in match.steps] == ["scale", "bias", "scale"]
    assert [bound.get("by") for _, bound in match.steps] == [2, None, 3]
    assert [bound[APPLIED_TO].node.name for _, bound in match.steps] == ["matmul", "mul", "add"]
    assert match.operands["bias1.mask"].node.name == "z_1"
    assert set(match.operands) == {"a", "b", "bias1.mask"}
    assert len(match.computed) == 5


def test_repeat_of_nothing():
    (match,) = found(scored, lambda x, y, z: (x @ y).softmax(-1))
    assert match.steps == ()


def test_repeat_meets_a_product_on_both_sides_of_a_sum():
    matches = found(scored, lambda x, y, z: (x @ y + z @ x).softmax(-1))
    assert {names(m)["a"] for m in matches} == {"x_1", "z_1"}


def test_steps_inside_a_term():
    """``baddbmm(mask, q, k, alpha=...)`` holds a scale, a bias and the product in one node."""
    b = [t[None] for t in (X, Y, Z)]
    (match,) = found(scored, lambda x, y, z: torch.baddbmm(z, x, y, alpha=0.5).softmax(-1), *b)
    assert [step for step, _ in match.steps] == ["scale", "bias"]
    assert match.steps[0][1]["by"] == 0.5
    assert match.steps[1][1]["mask"].node.name == "z_1"


def test_a_long_chain_ends():
    def function(x, y, z):
        s = x @ y
        for _ in range(60):
            s = s * 2 + 1
        return s.softmax(-1)

    started = time.perf_counter()
    assert not found(scored, function)
    assert time.perf_counter() - started < 5


def test_looks_through_what_changes_nothing():
    def function(x, y, z):
        s = (x.clone().contiguous() @ y.mT.mT).detach()
        return F.dropout(s.view(4, 4), 0.5, False).softmax(-1)

    (match,) = found(scored, function)
    assert names(match) == {"a": "x_1", "b": "y_1"}
    assert {n.name for n in match.computed} == {"matmul", "softmax"}
    assert {"clone", "detach", "view", "dropout"} <= {n.name for n in match.seen}


def test_looks_through_float_casts_of_computed_values_only():
    (match,) = found(scored, lambda x, y, z: (x.double() @ y.double()).float().softmax(-1))
    assert match["a"].node.name == "to"
    assert match["a"].dtype == torch.float64
    assert match.narrowed("a", "b")["a"].node.name == "x_1"


def test_narrowed_keeps_what_was_rounded():
    (match,) = found(scored, lambda x, y, z: (x.half() @ y.half()).softmax(-1))
    assert match.narrowed("a", "b")["a"].dtype == torch.float16


@pytest.mark.parametrize("write", [lambda c, x: c.mul_(2), lambda c, x: c[0].fill_(1)])
def test_a_copy_that_is_written_to_is_not_what_was_copied(write):
    def function(x, y, z):
        c = x.clone()
        write(c, x)
        return (c @ y).softmax(-1)

    (match,) = found(scored, function)
    assert match["a"].node.name != "x_1"
    assert match.narrowed("a")["a"].node.name != "x_1"


def test_a_cast_that_is_written_to_is_not_what_was_cast():
    def function(x, y, z):
        c = x.double()
        c.mul_(2)
        return (c @ y.double()).softmax(-1)

    (match,) = found(scored, function)
    assert match.narrowed("a", "b")["a"].dtype == torch.float64
    assert match.narrowed("a", "b")["b"].dtype == torch.float32


def test_what_is_written_to_was_not_computed_so():
    def function(x, y, z):
        s = x @ y
        s[0].fill_(1)
        return s.softmax(-1)

    assert not found(scored, function)


def test_a_written_reciprocal_is_none():
    def function(x, y, z):
        r = y.reciprocal()
        r[0].fill_(1)
        return x.relu() * r

    assert not found(lambda op, a, b: op.relu(a) / b, function)


def test_the_root_may_be_written_to_afterwards():
    def function(x, y, z):
        s = x @ y
        s.relu_()
        return s

    gm = trace(function, X, Y, Z)
    assert list(matcher(gm).match(compile_pattern(lambda op, a, b: a @ b), node(gm, "matmul")))


def test_transposed_roots():
    pattern = lambda op, a, b: op.any_of(op.relu(a) @ b, (op.relu(a) @ b).mT)  # noqa: E731
    (plainly,) = found(pattern, lambda x, y, z: x.relu() @ y)
    assert plainly.value.is_plain
    (turned,) = found(pattern, lambda x, y, z: y @ x.relu())  # = (relu(xᵀ) yᵀ)ᵀ
    assert not turned.value.is_plain
    assert turned["a"].dims == (1, 0)
    assert turned["b"].node.name == "y_1"
    assert turned["b"].dims == (1, 0)


def test_double_transposition_of_a_pattern_is_itself():
    pattern = lambda op, a, b: a.mT.mT @ b  # noqa: E731
    assert names(found(pattern, lambda x, y, z: x @ y)[0]) == {"a": "x_1", "b": "y_1"}


def test_a_regroup_must_keep_the_last_two_dims():
    pattern = lambda op, a, b: op.regroup(a @ b)  # noqa: E731
    q, k = torch.randn(6, 5, 4), torch.randn(6, 4, 5)
    assert found(pattern, lambda x, y: (x @ y).view(2, 3, 5, 5), q, k)
    assert not found(pattern, lambda x, y: (x @ y).view(6, 25), q, k)


def test_flags_of_the_fused_call():
    q = torch.randn(1, 2, 4, 8)
    (match,) = found(
        lambda op, q, k, v, m: op.sdpa(q, k, v, m),
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=0.5),
        q,
    )
    assert match.attrs == {"dropout": 0.0, "is_causal": True, "scale": 0.5, "enable_gqa": False}
    assert not match.has("m")


def test_a_pattern_must_end_in_an_operator():
    with pytest.raises(TypeError, match="must end in an operator"):
        found(lambda op, a: a, lambda x, y, z: x @ y)


def test_roots_are_found_by_operator():
    gm = trace(lambda x, y, z: (x @ y).relu() + z @ x, X, Y, Z)
    found_nodes = matcher(gm).nodes_reading_as({"matmul", "relu"})
    assert [n.name for n in found_nodes] == ["matmul", "relu", "matmul_1"]
    assert matcher(gm).nodes_reading_as({"softmax"}) == []


def test_the_deepest_mismatch_is_kept():
    gm = trace(lambda x, y, z: (x - y).softmax(-1) @ z, X, Y, Z)
    pattern = compile_pattern(lambda op, a, b, v: op.softmax(a @ b, dim=-1) @ v)
    looking = matcher(gm)
    assert not list(looking.match(pattern, returned(gm)))
    assert (looking.deepest.wanted, looking.deepest.found.name) == ("matmul", "sub")


def test_sizes_may_be_symbolic():
    (match,) = found(scored, lambda x, y, z: (x @ y * 2 + z).softmax(-1), dynamic=True)
    assert [step for step, _ in match.steps] == ["scale", "bias"]

"""What follows a linear: the forms that are one site with it, and the twins that are not."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from fxrewrite.ops.linear import ACTIVATIONS
from tests.patterns.test_linear import B, W, X, t
from tests.support.graphs import assert_right, lines, rewritten

pytestmark = pytest.mark.usefixtures("any_kernel")

X3 = t(3, 9, 40, seed=2)
R, R3 = t(33, 24, seed=5), t(3, 9, 24, seed=6)
GATE = t(3, 1, 24, seed=7)
W2, B2 = t(24, 40, seed=8), t(24, seed=9)
PACKED, PACKED_BIAS = t(48, 40, seed=10), t(48, seed=11)


def test_all_at_once_before_and_after():
    """An AdaLN block: residual + gate · act(x·Wᵀ + b)."""

    def function(x, w, b, gate, r):
        return r + gate * F.gelu(F.linear(x, w, b))

    found = rewritten(function, X3, W, B, GATE, R3)
    assert found.before == lines("""
        linear = linear.default(x_1, w_1, b_1)
        gelu = gelu.default(linear)
        mul = mul.Tensor(gate_1, gelu)
        add = add.Tensor(r_1, mul)
        return add
    """)
    assert found.after == lines("""
        linear_default_2 = fxrewrite.linear.default(x_1, w_1, b_1, activation=gelu, multiply=gate_1, residual=r_1)
        return linear_default_2
    """)
    assert [(s.rule, s.matched) for s in found.sites] == [("LinearEpilogue", True)]
    assert_right(found, function, X3, W, B, GATE, R3)


def test_packed_gate_before_and_after():
    def function(x, w, b):
        value, gate = F.linear(x, w, b).chunk(2, dim=-1)
        return value * F.gelu(gate)

    found = rewritten(function, X, PACKED, PACKED_BIAS)
    assert found.before == lines("""
        linear = linear.default(x_1, w_1, b_1)
        chunk = chunk.default(linear, 2, -1)
        getitem = <built-in function getitem>(chunk, 0)
        getitem_1 = <built-in function getitem>(chunk, 1)
        gelu = gelu.default(getitem_1)
        mul = mul.Tensor(getitem, gelu)
        return mul
    """)
    assert found.after == lines("""
        slice_tensor = slice.Tensor(w_1, 0, 24, 48)
        slice_tensor_1 = slice.Tensor(b_1, 0, 24, 48)
        linear_default = fxrewrite.linear.default(x_1, slice_tensor, slice_tensor_1, activation=gelu)
        slice_tensor_2 = slice.Tensor(w_1, 0, 0, 24)
        slice_tensor_3 = slice.Tensor(b_1, 0, 0, 24)
        linear_default_1 = fxrewrite.linear.default(x_1, slice_tensor_2, slice_tensor_3, multiply=linear_default)
        return linear_default_1
    """)
    assert [(s.rule, s.matched) for s in found.sites] == [("GatedLinear", True)]
    assert_right(found, function, X, PACKED, PACKED_BIAS)


ROOT_2_OVER_PI = math.sqrt(2.0 / math.pi)
ACTIVATED = {
    "gelu": ("gelu", lambda y: F.gelu(y)),
    "gelu_tanh": ("gelu_tanh", lambda y: F.gelu(y, approximate="tanh")),
    "silu": ("silu", F.silu),
    "silu in place": ("silu", lambda y: F.silu(y, inplace=True)),
    "relu": ("relu", F.relu),
    "relu in place": ("relu", lambda y: y.relu_()),
    "silu written": ("silu", lambda y: y * torch.sigmoid(y)),
    "silu written, sigmoid first": ("silu", lambda y: y.sigmoid() * y),
    "silu as a quotient": ("silu", lambda y: y / (1 + torch.exp(-y))),
    "quick gelu": ("quick_gelu", lambda y: y * torch.sigmoid(1.702 * y)),
    "gelu written": ("gelu", lambda y: y * 0.5 * (1.0 + torch.erf(y / math.sqrt(2.0)))),
    "gelu_tanh written": (
        "gelu_tanh",
        lambda y: 0.5 * y * (1.0 + torch.tanh(ROOT_2_OVER_PI * (y + 0.044715 * torch.pow(y, 3.0)))),
    ),
    "gelu_tanh written by products": (
        "gelu_tanh",
        lambda y: 0.5 * y * (1.0 + torch.tanh(y * 0.7978845608 * (1.0 + 0.044715 * y * y))),
    ),
}


@pytest.mark.parametrize(("name", "activation"), ACTIVATED.values(), ids=list(ACTIVATED))
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
def test_activations(name, activation, dynamic):
    def function(x, w, b):
        return activation(F.linear(x, w, b))

    found = rewritten(function, X3, W, B, dynamic=dynamic)
    assert found.after == lines(f"""
        linear_default = fxrewrite.linear.default(x_1, w_1, b_1, activation={name})
        return linear_default
    """)
    assert len(found.sites) == 1
    assert_right(found, function, X3, W, B)
    assert name in ACTIVATIONS


NO_ACTIVATION = {
    "silu of another slope": lambda y: y * torch.sigmoid(1.7 * y),
    "silu of another value": lambda y: y * torch.sigmoid(y + 1),
    "gelu of another cubic": lambda y: 0.5 * y * (1 + torch.tanh(ROOT_2_OVER_PI * (y + 0.0447 * y**3))),
    "gelu of another factor": lambda y: 0.5 * y * (1 + torch.tanh(0.79788 * (y + 0.044715 * y**3))),
    "gelu of another root": lambda y: 0.5 * y * (1 + torch.erf(y / 1.414)),
    "gelu twice as large": lambda y: y * (1 + torch.erf(y / math.sqrt(2.0))),
    "no product": lambda y: torch.sigmoid(y),
    "elu": F.elu,
    "leaky": lambda y: F.leaky_relu(y, 0.1),
}


@pytest.mark.parametrize("activation", NO_ACTIVATION.values(), ids=list(NO_ACTIVATION))
def test_no_activation(activation):
    def function(x, w, b):
        return activation(F.linear(x, w, b))

    found = rewritten(function, X, W, B)
    assert "activation" not in found.after
    assert found.of("linear").matched
    assert_right(found, function, X, W, B)


EPILOGUES = {
    "residual": (lambda x, w, r: F.linear(x, w) + r, (X, W, R), "residual=r_1"),
    "residual first": (lambda x, w, r: r + F.linear(x, w), (X, W, R), "residual=r_1"),
    "residual in place": (lambda x, w, r: F.linear(x, w).add_(r), (X, W, R), "residual=r_1"),
    "residual of a matmul with bias": (
        lambda x, w, b, r: (x @ w.t() + b) + r,
        (X, W, B, R),
        "b_1, residual=r_1",
    ),
    "residual of an addmm": (lambda x, w, b, r: torch.addmm(b, x, w.t()) + r, (X, W, B, R), "residual=r_1"),
    "residual after dropout": (
        lambda x, w, r: r + F.dropout(F.linear(x, w), 0.5, training=False),
        (X, W, R),
        "residual=r_1",
    ),
    "a residual that is the input": (lambda x, w: x + F.linear(x, w), (R, t(24, 24)), "residual=x_1"),
    "layer scale": (
        lambda x, w, b, r: r + b * F.linear(x, w),
        (X, W, B, R),
        "multiply=b_1, residual=r_1",
    ),
    "gate [B, 1, N]": (lambda x, w, g: g * F.linear(x, w), (X3, W, GATE), "multiply=g_1"),
    "gate [B, N] unsqueezed": (
        lambda x, w, g, r: r + g.unsqueeze(1) * F.linear(x, w),
        (X3, W, GATE[:, 0], R3),
        "residual=r_1",
    ),
    "product of every element": (lambda x, w, g: F.linear(x, w) * g, (X3, W, R3), "multiply=g_1"),
    "activation of a residual sum's input": (
        lambda x, w, r: F.silu(F.linear(x, w)) + r,
        (X, W, R),
        "activation=silu, residual=r_1",
    ),
    "gelu in float32": (
        lambda x, w, r: F.gelu(F.linear(x, w).float()).to(x.dtype) + r,
        (X, W, R),
        "activation=gelu, residual=r_1",
    ),
    "float32": (
        lambda x, w, r: r + F.gelu(F.linear(x, w)),
        (X.float(), W.float(), R.float()),
        "activation=gelu, residual=r_1",
    ),
    "weight as used": (lambda x, w, r: x @ w + r, (X, W.t().contiguous(), R), "residual=r_1"),
}


@pytest.mark.parametrize(("function", "inputs", "said"), EPILOGUES.values(), ids=list(EPILOGUES))
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "symbolic"])
def test_epilogues(function, inputs, said, dynamic):
    found = rewritten(function, *inputs, dynamic=dynamic)
    site = found.of("linear")
    assert site.matched, site.reason
    assert said in found.after
    assert found.after.count("fxrewrite") == 1
    assert "add.Tensor" not in found.after
    assert "mul.Tensor" not in found.after
    assert_right(found, function, *inputs)


def test_gate_of_a_modulation():
    def function(x, w, m, r):
        return r + m.chunk(6, dim=1)[2] * F.linear(x, w)

    inputs = X3, W, t(3, 6, 24), R3
    found = rewritten(function, *inputs)
    assert "multiply=getitem_2, residual=r_1" in found.after
    assert_right(found, function, *inputs)


def gates_by_itself(x, w):
    y = F.linear(x, w)
    return y * y.exp()


# The linear stays a site, without what follows it.
NOT_AN_EPILOGUE = {
    "a residual of another dtype": (lambda x, w, r: F.linear(x, w) + r, (X, W, R.float())),
    "a gate of another dtype": (lambda x, w, g: F.linear(x, w) * g, (X3, W, GATE.float())),
    "a gate of another dtype, cast back": (
        lambda x, w, g: (F.linear(x, w) * g).to(x.dtype),
        (X3, W, GATE.float()),
    ),
    "a narrower step": (lambda x, w: F.gelu(F.linear(x, w).bfloat16()).float(), (X.float(), W.float())),
    "a residual of every row": (lambda x, w, r: F.linear(x, w) + r, (X3, W, R3[:1])),
    "a residual of a column": (lambda x, w, r: F.linear(x, w) + r, (X, W, R[:, :1])),
    "a factor of each row": (lambda x, w, g: F.linear(x, w) * g, (X, W, R[:, :1])),
    "a larger factor": (lambda x, w, g: F.linear(x, w) * g, (X3[:, :1], W, R3)),
    "a larger residual": (lambda x, w, r: F.linear(x, w) + r, (X, W, R3[:, :1].expand(3, 33, 24))),
    "a number": (lambda x, w: F.linear(x, w) * 2, (X, W)),
    "a subtracted residual": (lambda x, w, r: r - F.linear(x, w), (X, W, R)),
    "a scaled residual": (lambda x, w, r: torch.add(F.linear(x, w), r, alpha=2), (X, W, R)),
    "a factor made of the result": (gates_by_itself, (X, W)),
    "another operator between": (lambda x, w, r: F.linear(x, w).exp() + r, (X, W, R)),
}


@pytest.mark.parametrize(("function", "inputs"), NOT_AN_EPILOGUE.values(), ids=list(NOT_AN_EPILOGUE))
def test_not_an_epilogue(function, inputs):
    found = rewritten(function, *inputs)
    sites = [s for s in found.sites if s.kind == "linear"]
    assert sites
    assert {(s.rule, s.matched) for s in sites} == {("Linear", True)}
    assert "activation=" not in found.after
    assert_right(found, function, *inputs)


def test_the_order_of_steps_is_kept():
    """act(linear + r) is not act(linear) + r."""

    def function(x, w, r):
        return F.gelu(F.linear(x, w) + r)

    found = rewritten(function, X, W, R)
    assert "residual=r_1" in found.after
    assert "gelu.default" in found.after
    assert_right(found, function, X, W, R)


def test_a_value_with_another_user_stays():
    def function(x, w, r):
        y = F.linear(x, w)
        return F.gelu(y) + r, y

    found = rewritten(function, X, W, R)
    assert [(s.rule, s.matched) for s in found.sites] == [("Linear", True)]
    assert "activation" not in found.after


def test_a_computed_weight_has_no_epilogue():
    """Where a weight is decoded first, that is the site to find."""
    found = rewritten(lambda x, w, r: F.linear(x, w + 1) + r, X, W, R)
    assert found.of("linear").rule == "Linear"


def test_gate_and_up_of_two_weights_are_two_sites():
    def function(x, w, v):
        return F.silu(F.linear(x, w)) * F.linear(x, v)

    found = rewritten(function, X, W, W2)
    assert found.after == lines("""
        linear_default_3 = fxrewrite.linear.default(x_1, v_1, None)
        linear_default_1 = fxrewrite.linear.default(x_1, w_1, None, activation=silu, multiply=linear_default_3)
        return linear_default_1
    """)
    assert [s.matched for s in found.sites] == [True, True]
    assert_right(found, function, X, W, W2)


def first_half_is_the_gate(x, w, b):
    gate, value = F.linear(x, w, b).chunk(2, dim=-1)
    return value * F.silu(gate)


def by_split(x, w, b):
    value, gate = F.linear(x, w, b).split(24, dim=-1)
    return F.relu(gate) * value


def by_split_sizes(x, w, b):
    value, gate = F.linear(x, w, b).split([24, 24], dim=-1)
    return value * F.gelu(gate, approximate="tanh")


def by_slices(x, w, b):
    y = F.linear(x, w, b)
    return y[..., :24] * F.silu(y[..., 24:])


def by_slices_from_the_end(x, w, b):
    y = F.linear(x, w, b)
    return y[..., -24:] * F.silu(y[..., :-24])


def without_bias(x, w, b):
    value, gate = F.linear(x, w).chunk(2, dim=-1)
    return value * F.silu(gate)


@pytest.mark.parametrize(
    "function",
    [first_half_is_the_gate, by_split, by_split_sizes, by_slices, by_slices_from_the_end, without_bias],
)
@pytest.mark.parametrize("x", [X, X3, X[0]], ids=["rank 2", "rank 3", "rank 1"])
def test_packed_gates(function, x):
    found = rewritten(function, x, PACKED, PACKED_BIAS)
    assert found.of("linear").rule == "GatedLinear"
    assert found.of("linear").matched, found.of("linear").reason
    assert_right(found, function, x, PACKED, PACKED_BIAS)


def gates_itself(x, w, b):
    value, _ = F.linear(x, w, b).chunk(2, dim=-1)
    return value * F.silu(value)


def other_dim(x, w, b):
    y = F.linear(x[:32], w, b)
    return y[:16] * F.silu(y[16:])


def three_parts(x, w, b):
    value, gate, _ = F.linear(x, w, b).chunk(3, dim=-1)
    return value * F.silu(gate)


def unequal(x, w, b):
    y = F.linear(x, w, b)
    return y[..., :20] * F.silu(y[..., 28:])


def interleaved(x, w, b):
    y = F.linear(x, w, b)
    return y[..., ::2] * F.silu(y[..., 1::2])


def used_elsewhere(x, w, b):
    value, gate = F.linear(x, w, b).chunk(2, dim=-1)
    return value * F.silu(gate) + gate


def two_linears(x, w, b):
    return F.linear(x, w, b).chunk(2, dim=-1)[0] * F.silu(F.linear(x, w).chunk(2, dim=-1)[1])


@pytest.mark.parametrize(
    "function", [gates_itself, other_dim, three_parts, unequal, interleaved, used_elsewhere, two_linears]
)
def test_not_packed_gates(function):
    found = rewritten(function, X, PACKED, PACKED_BIAS)
    assert "GatedLinear" not in {s.rule for s in found.sites}
    assert all(s.matched for s in found.sites)
    assert_right(found, function, X, PACKED, PACKED_BIAS)


def test_a_residual_written_to_in_between():
    def function(x, w, r):
        y = F.linear(x, w)
        r.mul_(2)
        return y + r

    found = rewritten(function, X, W, R)
    assert found.of("linear").matched
    assert_right(found, function, X, W, R)


def test_an_input_written_to_in_between():
    def function(x, w, r):
        y = F.linear(x, w)
        x.mul_(2)
        return y + r

    found = rewritten(function, X, W, R)
    assert (found.of("linear").rule, found.of("linear").matched) == ("Linear", True)
    assert_right(found, function, X, W, R)

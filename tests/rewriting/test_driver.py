"""The driver: the graph before and after, and what it says about every candidate."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fxrewrite.patterns import DEFAULT

from fxrewrite.guards import Verdict, divisible, holds
from fxrewrite.matching import Rule
from fxrewrite.ops.evidence import MEASURED, measured
from fxrewrite.ops.implementations import Implementation
from fxrewrite.ops.isa import active_isa
from fxrewrite.report import Reason
from fxrewrite.rewriting import choice
from tests.support.graphs import assert_right, lines, rewritten, trace

X, W, B = torch.randn(3, 8), torch.randn(5, 8), torch.randn(5)
Q = torch.randn(1, 2, 6, 8)

pytestmark = pytest.mark.usefixtures("any_kernel")


def test_before_and_after():
    found = rewritten(lambda x, w, b: F.linear(x, w, b).exp(), X, W, B)
    assert found.before == lines("""
        linear = linear.default(x_1, w_1, b_1)
        exp = exp.default(linear)
        return exp
    """)
    assert found.after == lines("""
        linear_default = fxrewrite.linear.default(x_1, w_1, b_1)
        exp = exp.default(linear_default)
        return exp
    """)
    site = found.of("linear")
    assert (site.status, site.code, site.reason) == ("matched", None, "")
    assert site.implementation.endswith("any")
    assert site.operands == {"x": "float32[3, 8]", "weight": "float32[5, 8]", "bias": "float32[5]"}
    assert site.rule == "Linear"
    assert site.node == "linear"
    assert site.id == "g.0"
    assert all(j.verdict is Verdict.PROVED for j in site.judgements)


def test_a_graph_without_sites_is_left_as_it_is():
    found = rewritten(lambda x: (x + 1).relu(), X)
    assert found.after == found.before
    assert found.sites == []


def test_sites_that_feed_each_other():
    def function(x, w):
        y = F.linear(F.linear(x, w), w)
        return F.scaled_dot_product_attention(y, y, F.linear(y, w))

    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(s, generator=generator).bfloat16() for s in ((2, 4, 24, 32), (32, 32))]
    found = rewritten(function, *inputs)
    assert found.matched == ["linear", "linear", "linear", "sdpa"]
    assert "linear.default(" not in found.after.replace("fxrewrite.linear.default(", "")
    assert_right(found, function, *inputs)


def test_sites_are_in_the_order_of_the_graph():
    def function(q, x, w):
        return F.linear(x, w), F.scaled_dot_product_attention(q, q, q), F.linear(x + 1, w)

    found = rewritten(function, Q, X, W)
    assert [s.kind for s in found.sites] == ["linear", "sdpa", "linear"]
    assert [s.id for s in found.sites] == ["g.0", "g.1", "g.2"]


def test_stack_traces_reach_the_report_and_the_replacement():
    gm = trace(lambda x, w: F.linear(x, w), X, W)
    for item in gm.graph.nodes:
        item.meta["stack_trace"] = (
            '  File "/home/me/net.py", line 12, in forward\n    return F.linear(x, w)\n'
        )
        item.meta["nn_module_stack"] = {"k": ("L['self']._modules['blocks']['3'].mlp", object)}
    found = rewritten(gm)
    site = found.of("linear")
    assert (site.location, site.source) == ("/home/me/net.py:12", "return F.linear(x, w)")
    assert site.module == "blocks.3.mlp"
    (inserted,) = gm.graph.find_nodes(op="call_function", target=torch.ops.fxrewrite.linear.default)
    assert inserted.meta["stack_trace"].startswith('  File "/home/me/net.py"')
    assert inserted.meta["val"].shape == (3, 5)


# ------------------------------------------------------------------------------------ refusals


class Doubled(Rule):
    """relu(x) · 2 by an operator of the test's choice."""

    kind = "linear"

    def __init__(self, build=lambda op, x: op.aten.mul.Tensor(x, 2), guards=()):
        self.build, self.wanted = build, guards

    def pattern(self, op, x):
        return op.relu(x) * 2

    def guards(self, m):
        return self.wanted

    def replace(self, op, m):
        return self.build(op, op.aten.relu(m["x"]))


class Twice(Doubled):
    """The same under another name."""


def doubled(x):
    return x.relu() * 2


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (
            lambda op, x: op.aten.to.dtype(x, torch.bfloat16),
            "torch.bfloat16 on cpu in place of torch.float32",
        ),
        (lambda op, x: op.aten.unsqueeze(x, 0), "rank 3 in place of 2"),
        (lambda op, x: op.aten.constant_pad_nd(x, [0, 1]), "size 9 in place of 8 in dim 1"),
        (
            lambda op, x: op.aten.t(op.aten.clone(op.aten.t(x), memory_format=torch.contiguous_format)),
            "stride 1 in place of 8 in dim 0",
        ),
    ],
)
def test_metadata_are_checked(build, said):
    found = rewritten(doubled, X, rules=[Doubled(build)])
    site = found.of("linear")
    assert site.code is Reason.METADATA
    assert said in site.detail
    assert found.after == found.before
    assert torch.equal(found.gm(X), doubled(X))


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Doubled(lambda op, x: op.aten.mm(x, x)), "Doubled: RuntimeError:"),
        (Doubled(lambda op, x: 1 / 0), "Doubled: ZeroDivisionError: division by zero"),
        (Doubled(lambda op, x: op.aten.absent(x)), "Doubled: AttributeError"),
        (Doubled(lambda op, x: None), "Doubled: TypeError: replace() gave None"),
        (Doubled(guards=["not a guard"]), "Doubled: TypeError: guards() gave 'not a guard'"),
    ],
)
def test_a_fault_of_a_rule_rejects_its_site(rule, said, monkeypatch, caplog):
    with pytest.raises(Exception, match=r"."):  # the tests of this repository are strict
        rewritten(doubled, X, rules=[rule])
    monkeypatch.setenv("FXREWRITE_STRICT", "0")
    found = rewritten(doubled, X, rules=[rule])
    site = found.of("linear")
    assert site.code is Reason.INTERNAL
    assert site.detail.startswith(said)
    assert found.after == found.before
    assert torch.equal(found.gm(X), doubled(X))
    assert "rule Doubled failed at" in caplog.text


def test_another_rule_takes_what_a_faulty_one_could_not(monkeypatch):
    monkeypatch.setenv("FXREWRITE_STRICT", "0")
    found = rewritten(doubled, X, rules=[Doubled(guards=["not a guard"]), Twice()])
    assert found.of("linear").rule == "Twice"
    assert found.matched == ["linear"]


def test_a_fault_of_an_implementation_rejects_its_site(monkeypatch):
    def faulty(arguments, level):
        raise KeyError("no such argument")

    broken = Implementation("broken", (active_isa(),), faulty)
    monkeypatch.setattr(choice, "IMPLEMENTATIONS", {**choice.IMPLEMENTATIONS, "sdpa": (broken,)})
    monkeypatch.setenv("FXREWRITE_STRICT", "0")
    found = rewritten(lambda q: F.scaled_dot_product_attention(q, q, q), Q)
    assert found.of("sdpa").code is Reason.INTERNAL
    assert found.after == found.before


def test_a_refuted_guard():
    found = rewritten(doubled, X, rules=[Doubled(guards=[holds(True, "a", ""), divisible(80, 32, "dim")])])
    site = found.of("linear")
    assert site.reason == "GUARD: dim = 80: 80 % 32 = 16"
    assert [j.guard for j in site.judgements] == ["a", "dim % 32 == 0"]
    assert found.after == found.before


def implementations(monkeypatch, *listed):
    monkeypatch.setattr(choice, "IMPLEMENTATIONS", {"linear": listed})


def test_the_first_implementation_that_applies(monkeypatch):
    refused = Implementation("best", (active_isa(),), lambda a, *_: [divisible(a["x"].shape[-1], 32, "k")])
    elsewhere = Implementation("other", ("sparc",), lambda a, *_: [])
    good = Implementation("good", (active_isa(),), lambda a, *_: [])
    implementations(monkeypatch, refused, elsewhere, good)
    site = rewritten(lambda x, w: F.linear(x, w), X, W).of("linear")
    assert site.implementation.endswith("good")
    best, other = site.refusals
    assert best.implementation.endswith("best")
    assert best.requirement == "k = 8: 8 % 32 = 8"
    assert other.implementation.endswith("other")
    assert active_isa() in other.requirement


@pytest.mark.parametrize(
    ("guard", "code"),
    [
        (lambda a: divisible(8, 32, "k"), Reason.GUARD),
        (lambda a: measured(divisible(8, 32, "k"), "too small"), Reason.NO_KERNEL),
    ],
)
def test_no_implementation(monkeypatch, guard, code):
    implementations(monkeypatch, Implementation("one", (active_isa(),), lambda a, *_: [guard(a)]))
    found = rewritten(lambda x, w: F.linear(x, w), X, W)
    site = found.of("linear")
    assert site.code is code
    assert site.detail.startswith("k = 8: 8 % 32 = 8")
    assert site.implementation is None
    assert found.after == found.before
    assert MEASURED == "measured"


def test_no_kernel_on_this_machine(monkeypatch):
    implementations(monkeypatch, Implementation("one", ("sparc",), lambda a, *_: []))
    assert rewritten(lambda x, w: F.linear(x, w), X, W).of("linear").code is Reason.NO_KERNEL


def test_what_is_unknown_is_dispatched_or_rejected(monkeypatch):
    implementations(
        monkeypatch,
        Implementation("one", (active_isa(),), lambda a, *_: [divisible(a["x"].shape[0], 32, "rows")]),
    )
    function = lambda x, w: F.linear(x, w)  # noqa: E731
    dispatched = rewritten(function, X, W, dynamic=True).of("linear")
    assert dispatched.implementation.endswith("one")
    assert any(j.verdict is Verdict.UNKNOWN for j in dispatched.judgements)
    rejected = rewritten(function, X, W, dynamic=True, on_unknown="reject").of("linear")
    assert rejected.code is Reason.UNPROVED
    assert rejected.detail.endswith("% 32 == 0")


# --------------------------------------------------------------------------------- nothing is lost


def test_no_guard_is_added():
    q = torch.randn(2, 4, 6, 8)

    def function(q, k, w):
        p = (q @ k.mT * 0.5).softmax(-1)
        return F.linear(p @ k, w)

    gm = trace(function, q, q, torch.randn(8, 8), dynamic=True)
    environment = next(n.meta["val"] for n in gm.graph.nodes).fake_mode.shape_env
    before = [str(g.expr) for g in environment.guards]
    found = rewritten(gm)
    assert set(found.matched) == {"sdpa", "linear"}
    assert [str(g.expr) for g in environment.guards] == before


LOGGED = []


@torch.library.custom_op("fxrewrite_tests::log", mutates_args=())
def log(x: torch.Tensor) -> None:
    LOGGED.append(x.sum().item())


@log.register_fake
def _(x):
    return None


def test_code_without_users_that_is_not_ours_stays():
    def function(x, w):
        torch.ops.fxrewrite_tests.log(x)
        return F.linear(x, w)

    found = rewritten(function, X, W)
    assert found.matched == ["linear"]
    LOGGED.clear()
    found.gm(X, W)
    assert len(LOGGED) == 1


def test_writes_stay():
    def function(x, w, state):
        state.add_(1)
        return F.linear(x, w)

    state = torch.zeros(2)
    found = rewritten(function, X, W, torch.zeros(2))
    assert found.matched == ["linear"]
    found.gm(X, W, state)
    assert state.tolist() == [1, 1]


def test_a_result_that_is_written_to_later():
    function = lambda x, w: F.linear(x, w).relu_()  # noqa: E731
    found = rewritten(function, X, W)
    assert found.matched == ["linear"]
    torch.testing.assert_close(found.gm(X, W), function(X, W))


def test_an_operand_does_not_stand_for_a_result_that_is_written_to():
    class Nothing(Rule):
        kind = "linear"

        def pattern(self, op, x):
            return op.relu(op.relu(x))

        def replace(self, op, m):
            return op.tensor(m["x"])

    def function(x):
        y = x.relu().relu()
        y.abs_()
        return y, x

    found = rewritten(function, X, rules=[Nothing()])
    assert found.of("linear").code is Reason.MUTATION
    assert found.after == found.before


def test_one_site_a_place():
    """A linear and the bias after it are one site; the decoded weight of two linears makes two."""
    found = rewritten(lambda x, w, b: F.linear(x, w) + b, X, W, B)
    assert [(s.kind, s.rule, s.status) for s in found.sites] == [("linear", "BiasedLinear", "matched")]


def test_sizes_computed_for_a_site_that_is_taken_out_again(monkeypatch):
    """Another site may use them: taking the site out must not fail."""

    def function(q, k, v, u):
        p = (q @ k.mT).softmax(-1)
        return p @ v, (q @ k.mT).softmax(-1) @ u

    q = torch.randn(2, 6, 8)
    u = torch.randn(2, 6, 9)
    found = rewritten(function, q, q + 1, q + 2, u, dynamic=True)
    inputs = (q, q + 1, q + 2, u)
    torch.testing.assert_close(found.gm(*inputs), function(*inputs))


def test_the_default_rules_are_named():
    assert [rule.name for rule in DEFAULT if rule.kind == "linear"] == [
        "GatedLinear",
        "LinearEpilogue",
        "BiasedLinear",
        "Linear",
        "Projection",
    ]

"""The module door: a rewritten module is the model in all but speed."""

from __future__ import annotations

import copy
import inspect
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxrewrite
from fxrewrite import UsageError
from tests.support.contract import check

pytestmark = pytest.mark.usefixtures("any_kernel")
BF16 = torch.bfloat16


class Block(nn.Module):
    """Attention written out, a linear layer on either side, and what modules carry otherwise."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.drop = nn.Dropout(0.5)
        self.register_buffer("shift", torch.full((width,), 0.25))

    def forward(self, x, scale: float = 0.35):
        q, k, v = self.qkv(x + self.shift).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        y = (q @ k.mT * scale).softmax(-1) @ v
        return self.drop(self.out(y.transpose(1, 2).flatten(2)))

    def extra(self):
        return "kept"


@pytest.fixture(autouse=True)
def quiet():
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def model():
    torch.manual_seed(1)
    return Block().eval().to(BF16)


def x(length=10, seed=0):
    return torch.randn(2, length, 32, generator=torch.Generator().manual_seed(seed)).to(BF16)


def right(fast, plain, *inputs):
    wide = copy.deepcopy(plain).double()
    check(fast(*inputs), plain(*inputs), wide(*(i.double() for i in inputs)))


KINDS = ["linear", "sdpa", "linear"]


def kinds(report):
    return [s.kind for s in report.matched]


# --------------------------------------------------------------------------------- rewrite and restore


def test_with_example_inputs():
    plain = model()
    before = copy.deepcopy(plain.__dict__)
    fast = fxrewrite.rewrite(plain, (x(),))
    assert fast.report.predicted
    assert kinds(fast.report) == KINDS
    assert set(plain.__dict__) == set(before)
    right(fast, plain, x())
    assert not fast.report.predicted
    assert kinds(fast.report) == KINDS


def test_without_example_inputs():
    plain = model()
    fast = fxrewrite.rewrite(plain)
    assert fast.report.sites == []
    right(fast, plain, x())
    assert kinds(fast.report) == KINDS


def test_keyword_examples_and_arguments():
    plain = model()
    fast = fxrewrite.rewrite(plain, kwargs={"x": x(), "scale": 0.5})
    assert kinds(fast.report) == KINDS
    assert torch.equal(fast(x=x(), scale=0.5), fast(x(), 0.5))


def test_in_place_and_back():
    plain = model()
    want = plain(x())
    outer = nn.Sequential(plain)
    same = fxrewrite.rewrite(plain, (x(),), inplace=True)
    assert same is plain
    outer(x())  # whoever holds the model profits
    assert kinds(plain.report) == KINDS
    assert not plain.report.predicted
    assert fxrewrite.restore(plain) is plain
    assert not hasattr(plain, "report")
    assert "forward" not in plain.__dict__
    assert torch.equal(plain(x()), want)


def test_a_patched_forward_is_put_back():
    plain = model()
    own = lambda t: Block.forward(plain, t) + 1  # noqa: E731
    plain.forward = own
    want = plain(x())
    fxrewrite.rewrite(plain, inplace=True)
    torch.testing.assert_close(plain(x()), want, rtol=0.02, atol=0.02)
    fxrewrite.restore(plain)
    assert plain.forward is own


def test_twice_is_refused():
    plain = model()
    fxrewrite.rewrite(plain, inplace=True)
    with pytest.raises(UsageError, match=r"rewritten already: call fxrewrite\.restore\(model\) first"):
        fxrewrite.rewrite(plain, inplace=True)
    with pytest.raises(UsageError, match="rewritten already"):
        fxrewrite.rewrite(fxrewrite.rewrite(model()))
    fxrewrite.restore(plain)
    fxrewrite.rewrite(plain, inplace=True)


def test_restore_needs_a_rewritten_model():
    with pytest.raises(UsageError, match="is not rewritten"):
        fxrewrite.restore(model())


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: fxrewrite.rewrite(lambda t: t),
            "expected an nn.Module or an ExportedProgram, got an object of type function",
        ),
        (lambda: fxrewrite.rewrite(model(), x()), "args: expected a tuple"),
        (lambda: fxrewrite.rewrite(model(), wrong=1), "unknown option 'wrong': expected one of then"),
        (
            lambda: fxrewrite.rewrite(model(), then="later"),
            "then='later': expected one of 'eager', 'inductor'",
        ),
        (lambda: fxrewrite.rewrite(model(), rules=[3]), "3 is not a Rule instance"),
        (lambda: fxrewrite.quality("best").__enter__(), "expected one of 'exact', 'lossless', 'high'"),
    ],
)
def test_wrong_use(call, said):
    with pytest.raises(UsageError) as caught:
        call()
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------------------------------------- state


def test_weights_are_shared():
    plain = model()
    fast = fxrewrite.rewrite(plain, (x(),))
    assert {n: id(p) for n, p in fast.named_parameters()} == {n: id(p) for n, p in plain.named_parameters()}
    assert {n: id(b) for n, b in fast.named_buffers()} == {n: id(b) for n, b in plain.named_buffers()}
    before = fast(x())
    plain.out.weight.mul_(2)
    right(fast, plain, x())
    assert not torch.equal(fast(x()), before)


def test_state_dict():
    plain = model()
    fast = fxrewrite.rewrite(plain, (x(),))
    assert list(fast.state_dict()) == list(plain.state_dict())
    fast(x())
    other = Block().eval().to(BF16)
    fast.load_state_dict(other.state_dict())
    right(fast, other, x())


def test_tied_weights_stay_tied():
    plain = model()
    plain.tied = nn.Linear(32, 32, bias=False)
    plain.tied.weight = plain.out.weight
    fast = fxrewrite.rewrite(plain, (x(),))
    assert fast.tied.weight is fast.out.weight is plain.out.weight


def test_attributes_methods_and_signature():
    fast = fxrewrite.rewrite(model())
    assert fast.extra() == "kept"
    assert fast.heads == 4
    assert isinstance(fast, Block)
    assert list(inspect.signature(fast.forward).parameters) == ["x", "scale"]


def test_a_model_with_a_report_of_its_own():
    class Reporting(nn.Module):
        def __init__(self):
            super().__init__()
            self.report = nn.Linear(32, 32)

        def forward(self, x):
            return self.report(x)

    plain = Reporting().to(BF16)
    fast = fxrewrite.rewrite(plain, (x(),))
    right(fast, plain, x())
    assert kinds(fast.forward.report) == ["linear"]
    fxrewrite.rewrite(plain, inplace=True)
    fxrewrite.restore(plain)
    assert isinstance(plain.report, nn.Linear)


def test_deepcopy():
    fast = fxrewrite.rewrite(model(), (x(),))
    want = fast(x())
    twin = copy.deepcopy(fast)
    assert twin.out.weight is not fast.out.weight
    assert torch.equal(twin(x()), want)
    twin.out.weight.zero_()
    twin.out.bias.zero_()
    assert not twin(x()).any()
    assert torch.equal(fast(x()), want)
    assert kinds(twin.report) == KINDS
    fxrewrite.restore(twin)
    assert not twin(x()).any()


@pytest.mark.parametrize("used", [False, True])
def test_pickle(used):
    fast = fxrewrite.rewrite(model(), (x(),))
    if used:
        fast(x())
    again = pickle.loads(pickle.dumps(fast))
    assert torch.equal(again(x()), fast(x()))
    assert kinds(again.report) == KINDS
    buffer = io.BytesIO()
    torch.save(fast, buffer)
    buffer.seek(0)
    assert torch.equal(torch.load(buffer, weights_only=False)(x()), fast(x()))


def test_train_and_eval():
    plain = model()
    fast = fxrewrite.rewrite(plain, (x(),))
    right(fast, plain, x())
    fast.train()
    assert not plain.training
    dropped = fast(x())
    assert (dropped == 0).float().mean() > 0.3
    fast.eval()
    right(fast, plain, x())


def test_gradients_flow_where_they_are_wanted():
    plain = model().float()
    fast = fxrewrite.rewrite(plain)
    with torch.enable_grad():
        fast(x().float()).sum().backward()
    assert plain.out.weight.grad is not None
    assert {s.code for s in fast.report.rejected} == {fxrewrite.report.Reason.REQUIRES_GRAD}
    assert fast.report.matched == []


def test_hooks():
    plain = model()
    seen = []
    plain.register_forward_pre_hook(lambda m, args: seen.append("before"))
    plain.register_forward_hook(lambda m, args, out: out + 1)
    plain.out.register_forward_hook(lambda m, args, out: out * 2)
    fast = fxrewrite.rewrite(plain, (x(),))
    seen.clear()
    right_out, want = fast(x()), plain(x())
    assert seen == ["before", "before"]
    torch.testing.assert_close(right_out, want, rtol=0.05, atol=0.05)


def test_inputs_are_left_alone():
    fast = fxrewrite.rewrite(model())
    given = x()
    before = given.clone()
    fast(given)
    assert torch.equal(given, before)


# ------------------------------------------------------------------------------------------- compiling


def test_exact_is_bit_equal():
    plain = model()
    fast = fxrewrite.rewrite(plain, (x(),))
    fast(x())
    compiled = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    with fxrewrite.quality("exact"):
        assert torch.equal(fast(x()), plain(x()))
    with fxrewrite.quality("exact"), fxrewrite.quality("lossless"):
        right(fast, plain, x())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == compiled


def test_exact_at_the_first_call():
    plain = model()
    fast = fxrewrite.rewrite(plain)
    with fxrewrite.quality("exact"):
        assert torch.equal(fast(x()), plain(x()))


def compilations(report):
    return [c.compilations for c in report.captures]


def test_one_recompilation_serves_all_lengths():
    plain = model()
    fast = fxrewrite.rewrite(plain)
    for length in (10, 12, 7, 33, 20, 5):
        right(fast, plain, x(length))
    assert compilations(fast.report) == [2]
    assert kinds(fast.report) == KINDS


class Leaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(32, 32)

    def forward(self, x):
        return self.layer(x).relu()


def test_many_models_of_one_class():
    """Dynamo counts recompilations by code: each rewritten model has a code of its own."""
    count = torch._dynamo.config.recompile_limit + 1
    plains = [Leaf().to(BF16) for _ in range(count)]
    fasts = [fxrewrite.rewrite(plain) for plain in plains]
    for plain, fast in zip(plains, fasts, strict=True):
        right(fast, plain, x())
        assert kinds(fast.report) == ["linear"]
        assert fast.report.notes == []


def test_a_graph_break_is_noted():
    class Breaking(Leaf):
        def forward(self, x):
            y = self.layer(x)
            torch._dynamo.graph_break()
            return self.layer(y)

    fast = fxrewrite.rewrite(Breaking().to(BF16))
    fast(x())
    assert kinds(fast.report) == ["linear", "linear"]
    assert any("graph break" in note for note in fast.report.notes)


def test_code_that_dynamo_skips_is_noted():
    class Skipped(Leaf):
        def forward(self, x):
            for parameter in self.parameters():
                parameter.requires_grad_(False)
            return self.layer(x)

    plain = Skipped().to(BF16)
    fast = fxrewrite.rewrite(plain)
    right(fast, plain, x())
    assert fast.report.sites == []
    (note,) = fast.report.notes
    assert note.startswith("forward runs as it is, 1 times: ")
    assert "requires_grad_()" in note


def test_inside_another_compilation():
    plain = model()
    outer = nn.Sequential(fxrewrite.rewrite(plain), nn.Identity())
    compiled = torch.compile(outer, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x()), plain(x()))


def test_autocast_around_the_call():
    plain = model().float()
    fast = fxrewrite.rewrite(plain)
    right(fast, plain, x().float())
    with torch.autocast("cpu", dtype=BF16):
        assert torch.equal(fast(x().float()), plain(x().float()))


def test_inference_mode():
    plain = model()
    fast = fxrewrite.rewrite(plain)
    with torch.inference_mode():
        right(fast, plain, x())
    assert kinds(fast.report) == KINDS


def test_analyze_computes_and_changes_nothing():
    plain = model()
    state = {n: t.clone() for n, t in plain.state_dict().items()}
    report = fxrewrite.analyze(plain, (x(),))
    assert kinds(report) == KINDS
    assert report.predicted
    assert "forward" not in plain.__dict__
    assert all(torch.equal(t, state[n]) for n, t in plain.state_dict().items())


def test_analyze_on_the_meta_device():
    with torch.device("meta"):
        big = Block(4096, 32).to(BF16).eval()
        given = torch.empty(1, 1000, 4096, dtype=BF16)
    report = fxrewrite.analyze(big, (given,))
    assert kinds(report) == KINDS
    assert report.matched[0].operands["weight"] == "bfloat16[12288, 4096]"
    assert big.qkv.weight.device.type == "meta"


@pytest.mark.slow
def test_then_inductor():
    plain = model()
    fast = fxrewrite.rewrite(plain, then="inductor")
    for length in (10, 12, 7):
        right(fast, plain, x(length))
    with fxrewrite.quality("exact"):
        assert torch.equal(fast(x()), plain(x()))
    assert kinds(fast.report) == KINDS


def test_user_rules():
    class Only(fxrewrite.Rule):
        kind = "linear"

        def pattern(self, op, x, weight, bias):
            return op.linear(x, weight, bias)

        def replace(self, op, m):
            return op.fxrewrite.linear(m["x"], m["weight"], m["bias"])

    plain = model()
    fast = fxrewrite.rewrite(plain, rules=[Only()])
    right(fast, plain, x())
    assert [(s.kind, s.rule) for s in fast.report.sites] == [("linear", "Only")] * 2


def test_a_failing_rule_does_not_fail_the_model(monkeypatch):
    monkeypatch.setenv("FXREWRITE_STRICT", "0")

    class Failing(fxrewrite.Rule):
        kind = "linear"

        def pattern(self, op, x, weight, bias):
            return op.linear(x, weight, bias)

        def replace(self, op, m):
            raise ValueError("no\nsuch thing")

    plain = model()
    fast = fxrewrite.rewrite(plain, rules=[Failing()])
    assert torch.equal(fast(x()), plain(x()))
    assert [s.reason for s in fast.report.sites] == ["INTERNAL: Failing: ValueError: no"] * 2


def test_weights_returned_by_a_model():
    """A softmax that the graph returns is neither a site nor a crash."""

    class Router(nn.Module):
        def forward(self, q, k):
            return (q @ k.mT).softmax(-1), F.softmax(q, -1)

    router = Router()
    fast = fxrewrite.rewrite(router, (x(), x()))
    assert all(torch.equal(a, b) for a, b in zip(fast(x(), x()), router(x(), x()), strict=True))

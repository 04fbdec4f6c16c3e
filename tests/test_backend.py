"""The compile door: found by name, without an import; wrong options are said in one line."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import nn

import fxrewrite
from fxrewrite import UsageError, backend
from fxrewrite.report import Report
from fxrewrite.rewriting import make_options
from tests.support.contract import check
from tests.support.graphs import dynamo_graphs

pytestmark = pytest.mark.usefixtures("any_kernel")
BF16 = torch.bfloat16


def model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 16)).eval().to(BF16)


X = torch.randn(20, 32, generator=torch.Generator().manual_seed(0)).to(BF16)


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    with torch.no_grad():
        yield


def right(compiled, plain, x):
    check(compiled(x), plain(x), copy.deepcopy(plain).double()(x.double()))


FRESH = """
import sys
import torch
from torch import nn
assert "fxrewrite" in torch.compiler.list_backends()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.Linear(48, 16)).bfloat16()
x = torch.randn(20, 32).bfloat16()
assert "fxrewrite" not in sys.modules
with torch.no_grad():
    ours = torch.compile(model, backend="fxrewrite", options={"then": "eager"})(x)
    eager = model(x)
assert "fxrewrite" in sys.modules
assert (ours.float() - eager.float()).abs().max() < 0.02, "wrong numbers"
print("done")
"""


def test_by_name_in_a_fresh_interpreter():
    run = subprocess.run([sys.executable, "-c", FRESH], capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    assert run.stdout == "done\n"


def test_then_eager(monkeypatch):
    seen = []
    original = backend.rewrite_graph
    monkeypatch.setattr(backend, "rewrite_graph", lambda *a, **k: seen.append(original(*a, **k)) or seen[-1])
    plain = model()
    right(torch.compile(plain, backend="fxrewrite", options={"then": "eager"}), plain, X)
    (found,) = seen
    assert [s.kind for s in found.sites if s.matched] == ["linear", "linear"]


@pytest.mark.slow
def test_then_inductor():
    plain = model()
    compiled = torch.compile(plain, backend="fxrewrite")
    right(compiled, plain, X)
    right(compiled, plain, X[:7])
    right(compiled, plain, X[:9])
    with fxrewrite.quality("exact"):
        assert torch.equal(compiled(X), plain(X))


@pytest.mark.slow
def test_exact_where_inductor_runs_and_nothing_matched():
    function = lambda x: (x * 1.7).sin().exp().sum(-1)  # noqa: E731
    compiled = torch.compile(function, backend="fxrewrite")
    x = torch.randn(50, 33)
    torch.testing.assert_close(compiled(x), function(x))
    with fxrewrite.quality("exact"):
        assert torch.equal(compiled(x), function(x))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"options": {"thenn": "eager"}}, "unknown option 'thenn': expected one of then, on_unknown, rules"),
        ({"options": {"then": "jit"}}, "then='jit': expected one of 'eager', 'inductor'"),
        ({"mode": "max-autotune"}, "torch.compile(mode=...) does not go with backend='fxrewrite'"),
    ],
)
def test_wrong_options(how, said):
    with pytest.raises(Exception, match=r".*") as caught:
        torch.compile(model(), backend="fxrewrite", **how)(X)
    causes, error = [], caught.value
    while error is not None:
        causes.append(error)
        error = error.__cause__ or error.__context__
    usage = next(e for e in causes if isinstance(e, UsageError))
    assert said in str(usage)
    assert "\n" not in str(usage)


def test_the_backend_called_directly():
    with pytest.raises(UsageError, match="unknown option 'a'"):
        backend.fxrewrite(None, [], options={"a": 1})


def test_the_dry_run_applies_nothing():
    plain = model()
    (gm,) = dynamo_graphs(plain, X)
    report = Report()
    inputs = [n.meta["example_value"] for n in gm.graph.find_nodes(op="placeholder")]
    run = backend.compile_graph(gm, inputs, make_options({}), report, apply=False)
    assert len(report.matched) == 2
    parameters = dict(plain.named_parameters())
    assert "fxrewrite" not in gm.code
    assert len(parameters) == 4
    assert run.__self__ is gm


def test_what_cannot_be_captured_stays_as_it_is(monkeypatch):
    def fail(gm):
        raise fxrewrite.CaptureError("Error: not today")

    monkeypatch.setattr(backend.capture, "from_dynamo", fail)
    (gm,) = dynamo_graphs(model(), X)
    report = Report()
    run = backend.compile_graph(gm, [], make_options({}), report)
    assert run.__self__ is gm
    (note,) = report.notes
    assert note.endswith("stays as it is: Error: not today")


def test_dynamic_shapes():
    plain = model()
    compiled = torch.compile(plain, backend="fxrewrite", options={"then": "eager"}, dynamic=True)
    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for rows in (20, 3, 7):
        right(compiled, plain, X[:rows].clone())
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == before + 1


def test_user_rules_and_unknown_conditions_as_options():
    from fxrewrite.patterns import Linear

    plain = model()
    options = {"then": "eager", "rules": [Linear()], "on_unknown": "reject"}
    right(torch.compile(plain, backend="fxrewrite", options=options), plain, X)


def test_a_fault_inside_leaves_the_graph_as_it_is_and_is_told(monkeypatch, caplog):
    def faulty(graph, *rest, **named):
        graph.graph.erase_node(next(n for n in reversed(graph.graph.nodes) if n.op == "output"))
        raise KeyError("a fault of the pass")

    monkeypatch.setattr(backend, "rewrite_graph", faulty)
    plain = model()
    with pytest.raises(Exception, match="a fault of the pass"):  # the tests of this repository are strict
        fxrewrite.rewrite(plain)(X)
    monkeypatch.setenv("FXREWRITE_STRICT", "0")
    fast = fxrewrite.rewrite(plain)
    assert torch.equal(fast(X), plain(X))
    assert any("by a fault of fxrewrite: KeyError: 'a fault of the pass'" in n for n in fast.report.notes)
    assert "a graph stays as it is" in caplog.text

"""What is given in place of a model, of its inputs or of a rule: each mistake is named at the call."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import fxrewrite
from fxrewrite.errors import UsageError

X = torch.randn(4, 64, dtype=torch.bfloat16)


def linear() -> nn.Module:
    return nn.Linear(64, 64, bias=False).to(torch.bfloat16).eval()


class Pipe:
    def __init__(self) -> None:
        self.components = {"unet": linear()}


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


@pytest.mark.parametrize("call", [fxrewrite.rewrite, fxrewrite.analyze, fxrewrite.restore])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "got an object of type NoneType"),
        ("torch.nn.Linear", "got an object of type str; give the model itself"),
        (3, "got an object of type int"),
        ({"model": 1}, "got an object of type dict"),
        (X, "got an object of type Tensor"),
        (nn.Linear, "got Linear; call it, if it makes a model, and give the result"),
        (functools.partial(nn.Linear, 2, 2), "got an object of type partial; call it"),
        (lambda x: x, "got an object of type function; call it"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_no_model(call, value, said):
    with pytest.raises(UsageError, match=f"^model: expected an nn.Module or an ExportedProgram, {said}"):
        call(value)


def test_a_pipeline_is_not_analysed_as_one():
    with pytest.raises(UsageError, match=r"got an object of type Pipe; give one of its components"):
        fxrewrite.analyze(Pipe())


@pytest.mark.parametrize("call", [fxrewrite.rewrite, fxrewrite.analyze])
@pytest.mark.parametrize(
    "make", [torch.jit.script, lambda m: torch.jit.trace(m, X)], ids=["scripted", "traced"]
)
def test_a_script_module(call, make):
    with torch.no_grad(), pytest.raises(UsageError, match="give the module it was made from"):
        call(make(linear()), (X,))


def test_a_script_module_in_a_pipeline_is_left_and_noted():
    pipe = Pipe()
    pipe.components["checker"] = checker = torch.jit.script(linear())
    report = fxrewrite.rewrite(pipe)
    assert report.notes == ["checker: a ScriptModule, which cannot be captured, runs as it is"]
    with torch.no_grad():
        torch.testing.assert_close(pipe.components["unet"](X).shape, checker(X).shape)
    assert fxrewrite.restore(pipe) is pipe


class HalfScripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = linear(), torch.jit.script(nn.Sequential(linear(), nn.ReLU()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.rest(self.first(x))


@pytest.mark.parametrize("inplace", [False, True])
def test_a_model_with_a_script_module_inside_runs_and_says_why_nothing_is_found(inplace):
    model = HalfScripted()
    with torch.no_grad():
        expected = model(X)
        fast = fxrewrite.rewrite(model, (X,), inplace=inplace)
        assert torch.equal(fast(X), expected)
    assert [note.split(":")[0] for note in fast.report.notes] == ["not captured, 1 times"]
    assert "torch.jit.script" in fast.report.notes[0]


@pytest.mark.parametrize("call", [fxrewrite.rewrite, fxrewrite.analyze])
@pytest.mark.parametrize(
    "args", [None, X, "abc", b"ab", {"input": X}, {X}, (x for x in [X])], ids=lambda a: type(a).__name__
)
def test_args_that_are_no_tuple(call, args):
    said = rf"^args: expected a tuple .* got {type(args).__name__}; write \(x,\) for a single one$"
    with pytest.raises(UsageError, match=said):
        call(linear(), args)


@pytest.mark.parametrize("call", [fxrewrite.rewrite, fxrewrite.analyze])
@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ([X], "expected a dict of keyword arguments, got list"),
        (X, "expected a dict of keyword arguments, got Tensor"),
        ([("input", X)], "expected a dict of keyword arguments, got list"),
        ({1: X}, "expected names, as strings, got the key 1"),
    ],
    ids=["list", "tensor", "pairs", "numbers"],
)
def test_kwargs_that_are_no_dict(call, kwargs, said):
    with pytest.raises(UsageError, match=f"^kwargs: {said}$"):
        call(linear(), (), kwargs)


def test_an_exported_program_has_its_own_inputs():
    program = torch.export.export(linear(), (X,))
    for call in (fxrewrite.rewrite, fxrewrite.analyze):
        with pytest.raises(UsageError, match="has its own example inputs: give none"):
            call(program, (X,))
    with pytest.raises(UsageError, match="never rewritten in place"):
        fxrewrite.rewrite(program, inplace=True)


class Whole(fxrewrite.Rule):
    kind = "linear"

    def pattern(self, op, x, weight):
        return op.linear(x, weight, None)

    def replace(self, op, m):
        return op.fxrewrite.linear(m["x"], m["weight"], None)


class NoKind(fxrewrite.Rule):
    pattern, replace = Whole.pattern, Whole.replace


class NoPattern(fxrewrite.Rule):
    kind = "linear"
    replace = Whole.replace


class NoReplace(fxrewrite.Rule):
    kind = "linear"
    pattern = Whole.pattern


class Misspelt(Whole):
    def pattern(self, op, x, weight):
        return op.linaer(x, weight)


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (NoKind, "NoKind has no kind: a rule needs kind, pattern"),
        (NoPattern, r"NoPattern has no pattern\(\): a rule needs"),
        (NoReplace, r"NoReplace has no replace\(\): a rule needs"),
        (Misspelt, "the pattern of Misspelt cannot be built: AttributeError: .*linaer"),
    ],
)
def test_rules_that_lack_a_part(rule, said):
    with pytest.raises(UsageError, match=f"^rules: {said}"):
        fxrewrite.rewrite(linear(), (X,), rules=[rule()])


class NoGuard(Whole):
    def guards(self, m):
        yield m["x"].rank == 2


class NoValue(Whole):
    def replace(self, op, m):
        return torch.nn.functional.linear


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (NoGuard, r"guards\(\) gave True: expected those of fxrewrite.guards"),
        (NoValue, r"replace\(\) gave <built-in function linear>: expected what a call of `op` returns"),
    ],
)
def test_rules_that_give_something_else(monkeypatch, rule, said):
    monkeypatch.setenv("FXREWRITE_STRICT", "1")
    with torch.no_grad(), pytest.raises(Exception, match=said):
        fxrewrite.analyze(linear(), (X,), rules=[rule()])

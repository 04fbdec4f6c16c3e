"""Inputs written on the command line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fxrewrite.errors import UsageError
from fxrewrite.target.inputs import parse_inputs

from .support.command_line import fails, folder_of_models, sites


@pytest.fixture(autouse=True)
def _models(tmp_path: Path) -> Iterator[None]:
    with folder_of_models(tmp_path):
        yield


@pytest.mark.parametrize(
    ("text", "dtype", "shape"),
    [
        ("x=bf16[1,4096,64]", torch.bfloat16, (1, 4096, 64)),
        ("x = fp32[2, 3]", torch.float32, (2, 3)),
        ("x=f64[]", torch.float64, ()),
        ("x=i64[7]", torch.int64, (7,)),
        ("x=bool[0,2]", torch.bool, (0, 2)),
        ("x=float8_e4m3fn[4]", torch.float8_e4m3fn, (4,)),
    ],
)
def test_tensors(text, dtype, shape):
    (value,) = parse_inputs([text]).values()
    assert (value.dtype, tuple(value.shape), value.device.type) == (dtype, shape, "meta")


@pytest.mark.parametrize(
    ("text", "value"),
    [("n=3", 3), ("n=False", False), ("n=None", None), ("n=[1, 2]", [1, 2]), ("n='a'", "a"), ("n=0.5", 0.5)],
)
def test_plain_values(text, value):
    assert parse_inputs([text]) == {"n": value}


@pytest.mark.parametrize("text", ["x", "=bf16[1]", "x=bf16[1,b]", "a b=3", "x=bf16(1)", "x="])
def test_another_form(text):
    with pytest.raises(UsageError, match=r"expected NAME=DTYPE\[SIZE,...\] such as x=bf16\[1,4096,64\]"):
        parse_inputs([text])


@pytest.mark.parametrize("name", ["bfloat", "Tensor", "nn"])
def test_an_unknown_dtype(name):
    with pytest.raises(UsageError, match=f"unknown dtype '{name}': expected bf16, f16"):
        parse_inputs([f"x={name}[1]"])


def test_they_are_given_to_the_model_of_a_callable():
    seen = []

    def analyze(model, args, kwargs):
        from fxrewrite.report import Report

        seen.append((args, kwargs))
        return Report()

    result = sites("models.py:no_inputs", "--input", "x=f32[5]", "--input", "scale=3", analyze=analyze)
    assert result.exit_code == 0, result.output
    ((args, kwargs),) = seen
    assert args == ()
    assert kwargs["x"].shape == (5,)
    assert kwargs["scale"] == 3


def test_a_name_that_the_model_has_not():
    fails(sites("models.py:build", "--input", "y=f32[5]"), "do not fit Linear.forward(input)", "'y'")


def test_a_bad_form_on_the_command_line():
    fails(sites("models.py:build", "--input", "x"), "--input 'x': expected NAME=DTYPE[SIZE,...]")


@pytest.mark.parametrize(
    ("target", "said"), [("models.py:build", "a model of your own"), ("linear.pt2", "a saved program")]
)
def test_a_dtype_goes_with_configurations_only(target, said):
    fails(sites(target, "--dtype", "fp32"), f"{target}: --dtype fp32 does not go with it: {said} has its own")


def test_an_exported_program_has_its_inputs():
    fails(
        sites("models.py:exported", "--input", "x=f32[2]"),
        "models.py:exported: --input x does not go with it: an ExportedProgram has its own",
    )

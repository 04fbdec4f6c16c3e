"""A native library that is missing, broken or another one: told in one line, and references run."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fxrewrite.ops import library


@pytest.mark.parametrize("content", [b"", b"no library at all"])
def test_a_broken_library(content, tmp_path, monkeypatch):
    path = tmp_path / "libfxrewrite_cpu.so"
    path.write_bytes(content)
    monkeypatch.delenv("FXREWRITE_ISA", raising=False)
    monkeypatch.setattr(library, "native_library_path", lambda: path)
    said = library.load_native.__wrapped__()
    assert said.startswith("libfxrewrite_cpu.so does not load: ")
    assert "\n" not in said


def test_no_library(monkeypatch):
    monkeypatch.delenv("FXREWRITE_ISA", raising=False)
    monkeypatch.setattr(library, "native_library_path", lambda: None)
    assert library.load_native.__wrapped__().startswith("the native library is not built")


def test_another_library(tmp_path, monkeypatch):
    def absent(name, *arguments):
        raise AttributeError(name)

    monkeypatch.delenv("FXREWRITE_ISA", raising=False)
    monkeypatch.setattr(library, "native_library_path", lambda: tmp_path / "libother.so")
    monkeypatch.setattr(library.torch.ops, "load_library", lambda path: None)
    monkeypatch.setattr(library, "call_native", absent)
    assert library.load_native.__wrapped__().startswith("libother.so is another library")


def test_the_signature_follows_the_schemas(monkeypatch):
    before = library.signature()
    monkeypatch.setattr(library, "_schemas", [*library._schemas, "another(Tensor x) -> Tensor"])
    assert library.signature() != before


FAKE_CALLS = {
    "linear": (lambda t: (t(2, 3, 8), t(5, 8), None), {"activation": "silu"}),
    "fp8_linear": (lambda t: (t(3, 8), t(5, 8).to(torch.float8_e4m3fn), t(5, 1)), {}),
    "sdpa": (lambda t: (t(1, 2, 3, 4), t(1, 2, 5, 4), t(1, 2, 5, 6)), {"token_major": True, "scale": 1}),
    "relu_linear_attention": (
        lambda t: (t(1, 2, 3, 4), t(1, 2, 3, 4), t(1, 2, 3, 4)),
        {"eps": 1e-6, "out_dtype": torch.bfloat16, "channel_major": True},
    ),
}


@pytest.mark.parametrize("name", FAKE_CALLS)
def test_a_fake_call_is_what_the_dispatcher_does(name):
    make, named = FAKE_CALLS[name]
    op = getattr(torch.ops.fxrewrite, name).default
    with FakeTensorMode():
        arguments = make(torch.empty)
        straight, dispatched = library.fake_call(op, arguments, named), op(*arguments, **named)
    assert type(straight) is type(dispatched)
    assert (straight.shape, straight.stride(), straight.dtype, straight.device) == (
        dispatched.shape,
        dispatched.stride(),
        dispatched.dtype,
        dispatched.device,
    )


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ({"bias": 1.0}, "argument bias is a float, expected Tensor or NoneType"),
        ({"activation": None}, "argument activation is a NoneType, expected str"),
        ({"scale": 1.0}, "unexpected keyword argument 'scale'"),
    ],
)
def test_a_fake_call_against_the_schema(named, told):
    with FakeTensorMode(), pytest.raises(TypeError, match=told):
        library.fake_call(torch.ops.fxrewrite.linear.default, (torch.empty(2, 8), torch.empty(5, 8)), named)


def test_a_fake_call_of_another_operator():
    with FakeTensorMode():
        assert library.fake_call(torch.ops.aten.mT.default, (torch.empty(2, 3),), {}).shape == (3, 2)

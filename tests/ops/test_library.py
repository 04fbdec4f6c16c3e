"""A native library that is missing, broken or another one: told in one line, and references run."""

from __future__ import annotations

import pytest

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

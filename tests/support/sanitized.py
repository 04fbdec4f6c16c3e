"""The native library that checks addresses and undefined behaviour, in the place of the installed one.

As a pytest plugin, ``-p tests.support.sanitized``, in a process that has the sanitizers' libraries preloaded:
``python -m tests.native.sanitize`` starts such processes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[2] / "build/sanitize/cpu/libfxrewrite_cpu.so"


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    import torch

    installed = torch.ops.load_library
    torch.ops.load_library = lambda path: installed(str(LIBRARY) if Path(path).name == LIBRARY.name else path)


def pytest_collection_finish() -> None:
    loaded = Path("/proc/self/maps").read_text()
    assert str(LIBRARY) in loaded, "the library with sanitizers is not the one that was loaded"
    assert "libasan" in loaded, "the address sanitizer is not preloaded"

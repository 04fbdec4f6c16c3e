"""The AMX emulator of native/testing: loading it, and what it counted.

It must be loaded before the product's library, which then finds AMX on this machine. A test process does so
as a pytest plugin, ``-p tests.support.amx``; a script calls `load` before it imports fxrewrite.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from pathlib import Path

import pytest

LIBRARY = Path(__file__).parents[2] / "build/native/testing/libfxrewrite_amx_emulator.so"


@functools.cache
def load() -> ctypes.CDLL:
    """The emulator, its symbols visible to libraries that are loaded later."""
    library = ctypes.CDLL(str(LIBRARY), mode=ctypes.RTLD_GLOBAL)
    library.amx_emulator_kind_name.restype = ctypes.c_char_p
    return library


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    load()


def pytest_sessionstart() -> None:
    load().amx_emulator_install()  # before pytest's faulthandler


@pytest.fixture(autouse=True)
def _tiles_are_released():
    """As a plugin: no op may leave tiles configured, on any thread."""
    yield
    assert not any(thread.configured for thread in threads())


@dataclass(frozen=True)
class ThreadCounts:
    """What one thread executed since the last `reset`."""

    instructions: dict[str, int]  # by mnemonic, lower case
    multiplied_rows: int  # rows of the left operands of all products
    configured: bool  # are its tiles configured now?


def _names() -> list[str]:
    library = load()
    return [library.amx_emulator_kind_name(kind).decode() for kind in range(library.amx_emulator_kinds())]


def reset() -> None:
    """Sets the counts of all threads to zero."""
    load().amx_emulator_reset()


def threads() -> list[ThreadCounts]:
    """One entry for each thread that ever executed a tile instruction, the newest first."""
    library, names = load(), _names()
    result = []
    for index in range(library.amx_emulator_threads()):
        counts, rows, configured = (ctypes.c_uint64 * len(names))(), ctypes.c_uint64(), ctypes.c_bool()
        library.amx_emulator_thread(index, counts, ctypes.byref(rows), ctypes.byref(configured))
        result.append(ThreadCounts(dict(zip(names, counts, strict=True)), rows.value, configured.value))
    return result


def total() -> ThreadCounts:
    """The sum over threads."""
    each = threads()
    return ThreadCounts(
        {name: sum(thread.instructions[name] for thread in each) for name in _names()},
        sum(thread.multiplied_rows for thread in each),
        any(thread.configured for thread in each),
    )

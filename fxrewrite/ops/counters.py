"""How often each implementation of each op ran: what makes a silent fallback visible."""

from __future__ import annotations

from .library import call_native, load_native


def counters() -> dict[str, dict[str, int]]:
    """Calls since the last reset, as ``{op: {implementation: calls}}``.

    An implementation is the instruction set of the kernel, with its algorithm where there are several
    ("avx512_bf16:dot"), or "reference". Only the native library counts: without it the result is empty.
    """
    counts: dict[str, dict[str, int]] = {}
    if load_native() is None:
        for line in str(call_native("_counters")).splitlines():
            op, implementation, calls = line.split("\t")
            counts.setdefault(op, {})[implementation] = int(calls)
    return counts


def reset_counters() -> None:
    """Set all counts to zero."""
    if load_native() is None:
        call_native("_reset_counters")

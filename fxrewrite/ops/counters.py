"""How often each implementation of each op ran: what makes a silent fallback visible."""

from __future__ import annotations

from .library import call_native, load_cuda, load_native, reference_calls

Calls = dict[str, dict[str, int]]


def counters() -> Calls:
    """Calls since the last reset, as ``{op: {implementation: calls}}``.

    An implementation is the instruction set of the kernel, with its algorithm where there are several
    ("avx512_bf16:dot"), "cuda" with it ("cuda:stream"), or "reference". Calls by all threads of this process
    are counted.
    """
    counts: Calls = {op: {"reference": calls} for op, calls in reference_calls.items() if calls}
    for missing, name in ((load_native(), "_counters"), (load_cuda(), "_cuda_counters")):
        for line in str(call_native(name)).splitlines() if missing is None else ():
            op, implementation, calls = line.split("\t")
            of_op = counts.setdefault(op, {})
            of_op[implementation] = of_op.get(implementation, 0) + int(calls)
    return counts


def reset_counters() -> None:
    """Set all counts to zero."""
    reference_calls.clear()
    if load_native() is None:
        call_native("_reset_counters")
    if load_cuda() is None:
        call_native("_reset_cuda_counters")


class CallsSince:
    """Calls since this object was made, as ``counters()`` has them. A copy of it starts anew."""

    def __init__(self) -> None:
        self._before = counters()

    def __call__(self) -> Calls:
        now = counters()
        before = {(op, by): n for op, counts in self._before.items() for by, n in counts.items()}
        if any(n > now.get(op, {}).get(by, 0) for (op, by), n in before.items()):
            before = {}  # the counters were reset
        new = {
            op: {by: n - before.get((op, by), 0) for by, n in counts.items()} for op, counts in now.items()
        }
        more = {op: {by: n for by, n in counts.items() if n} for op, counts in new.items()}
        return {op: counts for op, counts in more.items() if counts}

    def __reduce__(self) -> tuple[type[CallsSince], tuple[()]]:
        return CallsSince, ()

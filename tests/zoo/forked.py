"""Work on one entry in a process of its own: a fork of this one, which ends with it or at its time."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def each(
    names: Iterable[str], work: Callable[[str], dict[str, Any]], limit: float
) -> Iterator[dict[str, Any]]:
    """What ``work`` says of each entry, plain data; ``limit`` is its time in seconds."""
    for name in names:
        read_end, write_end = os.pipe()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.close(read_end)
            status = 1
            try:
                os.setpgid(0, 0)
                with os.fdopen(write_end, "w") as pipe:
                    json.dump(work(name), pipe, default=str)
                status = 0
            finally:
                os._exit(status)
        os.close(write_end)
        yield collect({"entry": name, "timeout": limit}, pid, read_end)


def collect(job: dict[str, Any], pid: int, read_end: int) -> dict[str, Any]:
    began, data = time.monotonic(), b""
    timed_out = False
    with os.fdopen(read_end, "rb", buffering=0) as pipe:
        while True:
            left = job["timeout"] - (time.monotonic() - began)
            if left <= 0 or not select.select([pipe], [], [], left)[0]:
                timed_out = True
                break
            chunk = pipe.read(1 << 16)
            if not chunk:
                break
            data += chunk
    if timed_out:
        try:
            os.killpg(pid, signal.SIGKILL)
        except ProcessLookupError:
            os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    seconds = round(time.monotonic() - began, 2)
    failed = {"entry": job["entry"], "status": "error", "seconds": seconds}
    if timed_out:
        return {**failed, "message": f"no result in {job['timeout']:.0f} s"}
    try:
        return json.loads(data)
    except ValueError:
        code = os.waitstatus_to_exitcode(status)
        return {
            **failed,
            "message": f"process died: {f'signal {-code}' if code < 0 else f'exit code {code}'}",
        }

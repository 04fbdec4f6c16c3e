"""The kernels' tests on the library with sanitizers, at every ISA level that this machine has: all of them at
the best, and those that draw sizes, strides and flags at the others, where all would take too long.

    python -m tests.native.sanitize [pytest's arguments]

``make sanitize`` builds that library first, in build/sanitize, and then runs this.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time

from fxrewrite.ops.isa import detected_isa
from tests.ops.test_isa import KERNELS, LEVELS
from tests.support.sanitized import LIBRARY

ROOT = LIBRARY.parents[3]


def runtime() -> str:
    """What the process must have preloaded: the sanitizer of the compiler that built the library, and the
    C++ library, whose exceptions it watches."""
    cache = (LIBRARY.parents[1] / "CMakeCache.txt").read_text()
    compiler = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.MULTILINE)[1]
    found = []
    for name in ("libasan.so", "libstdc++.so"):
        ask = [compiler, f"-print-file-name={name}"]
        found.append(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
        if not os.path.isabs(found[-1]):
            raise SystemExit(
                f"{compiler} has no {name}: make sanitize needs GCC (CXX=g++) and its sanitizers"
            )
    return ":".join(found)


# The kernel reads weights that were freed: what the sanitizer must find.
FREED = """
import ctypes
import torch
from tests.support import sanitized
sanitized.pytest_load_initial_conftests()
import fxrewrite
size, libc = 64 * 64 * 4, ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
address = libc.malloc(size)
weight = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.float32)
libc.free(ctypes.c_void_p(address))
torch.ops.fxrewrite.linear(torch.ones(3, 64), weight.view(64, 64))
"""


def main(arguments: list[str]) -> int:
    if not LIBRARY.exists():
        raise SystemExit(f"{LIBRARY.relative_to(ROOT)} is not built: make sanitize builds it")
    best = detected_isa()
    levels = LEVELS[LEVELS.index(best) :: -1]
    failed = []
    base = {
        **os.environ,
        "LD_PRELOAD": runtime(),
        # Python and torch keep what they allocate; a fault of theirs is none of ours
        "ASAN_OPTIONS": "detect_leaks=0:detect_odr_violation=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "2",
    }
    freed = subprocess.run(
        [sys.executable, "-c", FREED], env=base, cwd=ROOT, capture_output=True, text=True, check=False
    )
    if "heap-use-after-free" not in freed.stderr or str(ROOT / "native") not in freed.stderr:
        raise SystemExit(f"the sanitizer does not see a kernel read freed memory:\n{freed.stderr[-2000:]}")
    for level in levels:
        environment = {**base, "FXREWRITE_ISA": level}
        chosen = [] if level == best else ["-k", "test_any"]
        began = time.monotonic()
        command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.support.sanitized"]
        done = subprocess.run(
            [sys.executable, *command, *(arguments or [*chosen, "-m", "not slow", *KERNELS])],
            env=environment, cwd=ROOT, check=False,
        )  # fmt: skip
        print(f"{level}: exit code {done.returncode}, {time.monotonic() - began:.0f} s", flush=True)
        failed += [level] if done.returncode else []
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

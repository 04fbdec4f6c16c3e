"""What each CUDA kernel uses of a multiprocessor, as ptxas says: ``python -m tests.cuda.resources`` writes the
table native/cuda/RESOURCES.md anew.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from .building import BUILD, ROOT, build, nvcc

TABLE = ROOT / "native" / "cuda" / "RESOURCES.md"
ARCHITECTURES = ("sm_80", "sm_90a")

_ENTRY = re.compile(
    r"Compiling entry function '(?P<name>\w+)' for '(?P<arch>\w+)'"
    r".*?(?P<stack>\d+) bytes stack frame, (?P<stores>\d+) bytes spill stores, (?P<loads>\d+) bytes spill loads"
    r".*?Used (?P<registers>\d+) registers",
    re.DOTALL,
)
Figures = dict[str, dict[str, tuple[int, int]]]


def collect() -> Figures:
    """{architecture: {kernel: (registers of a thread, bytes spilled)}} from the logs of the last build."""
    found: Figures = {}
    for log in sorted(BUILD.glob("cuda/**/*.cu.o.log")):
        for entry in _ENTRY.finditer(log.read_text()):
            kernels = found.setdefault(entry["arch"], {})
            kernels[_readable(entry["name"], log)] = int(entry["registers"]), int(entry["stores"])
    return found


def _readable(mangled: str, log: Path) -> str:
    """ "relu_linear_attention: apply<32, 1, true>" """
    demangled = subprocess.run(["c++filt", mangled], capture_output=True, text=True, check=True).stdout
    name = re.sub(r"^void |fx::|\(anonymous namespace\)::|\(Work\)$", "", demangled.strip())
    return f"{log.name.split('.')[0]}: {re.sub(r'[(].*[)]', '', name)}"


def version() -> str:
    """ "nvcc 13.0.88" """
    said = subprocess.run([str(nvcc()), "--version"], capture_output=True, text=True, check=True).stdout
    return "nvcc " + re.search(r"V([\d.]+)", said)[1]  # type: ignore[index]


def table(found: Figures) -> str:
    lines = ["| kernel | " + " | ".join(ARCHITECTURES) + " |", "|---|" + "--:|" * len(ARCHITECTURES)]
    for kernel in sorted(found[ARCHITECTURES[0]]):
        cells = []
        for arch in ARCHITECTURES:
            registers, spilled = found[arch][kernel]
            cells.append(f"{registers}" + (f" + {spilled} B" if spilled else ""))
        lines.append(f"| `{kernel}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    build("fxrewrite_cuda")
    TABLE.write_text(
        "# Registers of the CUDA kernels\n\n"
        f"Of a thread, and bytes that it spills to memory, by ptxas of {version()}. Written by\n"
        "`python -m tests.cuda.resources`; the tests hold the build against it.\n\n" + table(collect())
    )


if __name__ == "__main__":
    main()

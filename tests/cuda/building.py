"""Builds what the tests of the CUDA half need, once: the CPU shim, and the library itself where nvcc is."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "testing"


def tool(name: str) -> str | None:
    """A program of this environment, or else of the machine."""
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.prefix) / "bin"), os.environ["PATH"]]))


def nvcc() -> str | None:
    return tool("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def build(target: str) -> Path:
    """The library ``target`` (fxrewrite_cuda, fxrewrite_cuda_shim), up to date.

    Fails the test with the compiler's output where it does not build; skips it where cmake or ninja is missing.
    """
    cmake, ninja = tool("cmake"), tool("ninja")
    if cmake is None or ninja is None:
        pytest.skip("cmake and ninja are not installed")
    BUILD.mkdir(parents=True, exist_ok=True)
    with (BUILD / "lock").open("w") as lock:  # several workers want it at once
        fcntl.flock(lock, fcntl.LOCK_EX)
        configure = [cmake, "-G", "Ninja", "-S", str(ROOT / "native"), "-B", str(BUILD)]
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_MAKE_PROGRAM": ninja,
            "Python_EXECUTABLE": sys.executable,
            "FXREWRITE_TESTING": "ON",
            "FXREWRITE_CUDA": "OFF" if nvcc() is None else "ON",
        }
        if nvcc() is not None:
            options["CMAKE_CUDA_COMPILER"] = str(nvcc())
        _run([*configure, *(f"-D{name}={value}" for name, value in options.items())])
        _run([cmake, "--build", str(BUILD), "--target", target])
    (library,) = BUILD.glob(f"**/lib{target}.so")
    return library


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.fail(f"{' '.join(command)}:\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}", pytrace=False)

"""Fixtures of all tests. A fault inside the pass fails the test that met it."""

import os

os.environ.setdefault("FXREWRITE_STRICT", "1")

from tests.support.graphs import any_kernel  # noqa: F401


def pytest_terminal_summary(terminalreporter):
    """What ran of the CUDA half, in one line: there is no GPU here that would show it."""
    passed = [
        report.nodeid
        for report in terminalreporter.stats.get("passed", [])
        if report.when == "call" and report.nodeid.startswith("tests/cuda/")
    ]
    if passed:
        built = any("test_library.py::test_it_loads" in name for name in passed)
        sources = "compiled for sm_80 and sm_90a" if built else "not compiled (no nvcc, or not asked for)"
        terminalreporter.write_line(f"CUDA: sources {sources}; {len(passed)} tests passed without a GPU")

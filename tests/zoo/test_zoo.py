"""The pass on every entry of the model zoo: sound everywhere, and recall by family.

Each entry runs once in a process of its own; soundness and recall read the same result, which the workers
of pytest-xdist share through files. Entries that do not build are skipped with their reason.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import sys
from pathlib import Path

import pytest

from . import entries, measure

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not entries.present(), reason=entries.MISSING),
]

# Shares of the sites that reach the backend which must be in the report.
RECALL = {"fused": 1.0, "linear": 1.0, "manual": 0.5, "fp8": 0.5, "linear_attention": 0.5}


class Results:
    """Results by entry: measured when first asked for, by whichever worker asks first."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.server = measure.Server(log=folder / "entries.log")

    def get(self, name: str) -> dict:
        self.folder.mkdir(exist_ok=True)
        path = self.folder / f"{name}.json"
        with open(self.folder / f"{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not path.exists():
                path.write_text(json.dumps(self.server.run(name)))
            return json.loads(path.read_text())

    def all(self) -> list[dict]:
        return [self.get(name) for name in entries.names()]


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    base = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    found = Results(base / "zoo")
    yield found
    found.server.close()


@pytest.mark.parametrize("name", entries.names())
def test_sound(name, results):
    result = results.get(name)
    if result["status"] == "skip":
        pytest.skip(result["message"])
    assert result["status"] == "sound", f"{result['message']}\n{result.get('trace', '')}"


@pytest.mark.parametrize("name", entries.names())
def test_fused_attention_and_linears_are_sites(name, results):
    sites = measure.families(results.get(name))
    if sites is None:
        pytest.skip("no result, or no counts for this entry")
    for family in ("fused", "linear"):
        found, reach, eager, _ = sites[family]
        assert found >= reach, f"{found} of {reach} {family} sites (the eager model has {eager})"


@pytest.mark.parametrize("family", list(RECALL))
def test_recall(family, results, capsys):
    found, reach, eager, matched, lines = 0, 0, 0, 0, []
    for result in results.all():
        sites = measure.families(result)
        if sites is None or not sites[family][2]:
            continue
        f, r, e, m = sites[family]
        found, reach, eager, matched = found + min(f, r), reach + r, eager + e, matched + m
        lines.append(f"    {result['entry']:36} {f:3} of {r:3}" + (f"  ({e} in the model)" if e > r else ""))
    with capsys.disabled():
        show(f"zoo recall, {family}: {found} of {reach} sites that reach the backend ({matched} matched)")
        if eager > reach:
            show(f"    {eager - reach} more are in code that Dynamo runs eagerly or hides in one operator")
        for line in lines:
            show(line)
    assert reach, "nothing was measured"
    assert found >= math.ceil(RECALL[family] * reach)


def test_count(results, capsys):
    """Nearly everything builds, and all that builds is sound."""
    everything = results.all()
    with capsys.disabled():
        for line in measure.summary(everything):
            show(line)
    skipped = [r["entry"] for r in everything if r["status"] == "skip"]
    assert len(skipped) <= len(everything) // 10, skipped
    assert not [r["entry"] for r in everything if r["status"] not in ("sound", "skip")]


def show(text: str) -> None:
    """To the terminal, also from a worker of pytest-xdist (whose stdout is not shown)."""
    print(text, file=sys.__stderr__, flush=True)

"""The shared case file (../shared/cases beside the repository), run as its own runner runs it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (CASES / "run_cases.py").is_file(), reason="no case file at ../shared/cases"),
]

# A failure with one of these messages asks for a wider (or narrower) match: the numbers were right.
ABOUT_THE_OUTCOME = ("outcome ", " matched site(s), expected")


def only_the_outcome(result):
    message = result["msg"]
    return message.startswith("outcome ") or ABOUT_THE_OUTCOME[1] in message


def run_cases(module, folder):
    path = folder / f"{module.replace(':', '-')}.json"
    command = [
        sys.executable,
        str(CASES / "run_cases.py"),
        "--module",
        module,
        "--cases",
        str(CASES / "cases.py"),
    ]
    done = subprocess.run(
        [*command, "--json", str(path)],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert path.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(path.read_text())


@pytest.mark.parametrize("module", ["fxrewrite", "compile:fxrewrite"])
def test_no_wrong_number_crash_or_changed_state(module, tmp_path, capsys):
    results = run_cases(module, tmp_path)
    if module.startswith("compile:"):
        # what torch.compile itself does not do, whatever the backend: it renames the state, say
        plain = run_cases("compile:eager", tmp_path)
        results = {name: r for name, r in results.items() if plain[name]["passed"]}
    failed = {name: r["msg"] for name, r in results.items() if not r["passed"]}
    outcomes = {name: failed[name] for name in failed if only_the_outcome(results[name])}
    with capsys.disabled():
        print(f"\n{module}: {len(results) - len(failed)} of {len(results)} cases pass")
        for name, message in outcomes.items():
            print(f"    another outcome than asked for: {name}: {message[:120]}")
    assert len(results) > 50
    assert not {name: message for name, message in failed.items() if name not in outcomes}


def test_the_runner_itself_passes_eager(tmp_path):
    results = run_cases("identity", tmp_path)
    assert [name for name, r in results.items() if not r["passed"]] == []


@pytest.mark.parametrize(
    ("message", "about"),
    [
        ("outcome no_site, expected match", True),
        ("1 matched site(s), expected 2", True),
        ("output: relative-norm error 0.3 > 0.02", False),
        ("worker died with exit code -11", False),
        ("original module's state_dict: non-float values differ", False),
    ],
)
def test_sorting_of_failures(message, about):
    assert only_the_outcome({"msg": message}) is about

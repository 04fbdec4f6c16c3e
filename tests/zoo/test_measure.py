"""The measuring itself: counting, attribution to families, and that failures of an entry are its own."""

import pytest

from . import entries, measure

needs_zoo = pytest.mark.skipif(not entries.present(), reason=entries.MISSING)


@pytest.fixture
def truth(monkeypatch):
    counts = {"n_sdpa": 2, "n_manual_attn": 1, "n_linear": 6, "n_linear_attn": 0}
    reach = {"sdpa_fused": 2, "sdpa_manual": 0, "linear:linear": 4, "fp8": 2}
    entry = {"eager": counts, "expect": {"fp8": 2}, "capture": {"dynamo": {"sites": reach}}}
    monkeypatch.setattr(entries, "truth", lambda: {"model": entry, "unbuilt": {"build_error": "no"}})


def sites(**matched_rejected):
    empty = dict.fromkeys(("sdpa", "linear", "fp8_matmul", "linear_attention"), (0, 0))
    pairs = {**empty, **matched_rejected}
    return {kind: {"matched": m, "rejected": r} for kind, (m, r) in pairs.items()}


def test_expected_counts(truth):
    want = entries.expected("model")
    assert want.eager == {"fused": 2, "manual": 1, "linear": 6, "fp8": 2, "linear_attention": 0}
    assert want.reach == {"fused": 2, "manual": 0, "linear": 4, "fp8": 2, "linear_attention": 0}
    assert entries.expected("unbuilt") is None


def test_attribution_never_exceeds_the_model(truth):
    got = entries.found("model", sites(sdpa=(2, 7), linear=(3, 1), fp8_matmul=(2, 0)))
    assert got == {"fused": 2, "manual": 1, "linear": 6, "fp8": 2, "linear_attention": 0}
    got = entries.found("model", sites(sdpa=(1, 1), linear=(1, 1)), matched_only=True)
    assert got == {"fused": 1, "manual": 0, "linear": 1, "fp8": 0, "linear_attention": 0}


def test_line_marks_missing_sites(truth):
    result = {"entry": "model", "status": "sound", "ratio": 1.1, "seconds": 2.0, "message": ""}
    text = measure.line({**result, "sites": sites(sdpa=(2, 0), linear=(1, 0), fp8_matmul=(2, 0))})
    assert "linear 3/4[6](3)!" in text
    assert "sdpa 2/2(2)" in text
    assert "1.10" in text


def test_summary_counts(truth):
    sound = {"entry": "model", "status": "sound", "ratio": 1.0, "message": "", "sites": sites(sdpa=(1, 0))}
    lines = measure.summary(
        [
            sound,
            {"entry": "unbuilt", "status": "skip", "message": "no package"},
            {"entry": "model", "status": "breach", "message": "off by one", "sites": sites()},
        ]
    )
    assert lines[0] == "1 of 2 entries sound, 1 skipped"
    assert any("1 x breach: off by one" in line for line in lines)
    assert any(line.split()[:6] == ["fused", "1", "/", "4", "/", "4"] for line in lines)


@needs_zoo
@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "status"), [("identity", "sound"), ("other-order", "sound"), ("biased", "breach")]
)
def test_stand_ins(subject, status):
    server = measure.Server(subject)
    try:
        assert server.run("hand-div-sqrt")["status"] == status
    finally:
        server.close()


@needs_zoo
@pytest.mark.slow
def test_an_entry_that_hangs_or_dies_costs_only_itself():
    server = measure.Server("identity")
    try:
        assert "no result in" in server.run("hand-div-sqrt", timeout=0.0)["message"]
        assert server.run("no-such-entry")["status"] in ("skip", "error")
        assert server.run("hand-div-sqrt")["status"] == "sound"
        server.process.kill()
        server.process.wait()
        assert server.run("hand-div-sqrt")["status"] == "sound"
    finally:
        server.close()

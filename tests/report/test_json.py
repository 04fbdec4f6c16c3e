"""The JSON report against its schema, which the package carries."""

from __future__ import annotations

import importlib.resources
import json
from typing import Any

import pytest

from fxrewrite.guards.verdict import Verdict
from fxrewrite.report import KINDS, Report
from fxrewrite.report.findings import SCHEMA_VERSION

from .samples import ATTENTION_WORK, transformer

TYPES: dict[str, Any] = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "integer": int,
    "number": (int, float),
    "null": type(None),
}
KEYWORDS = {
    *("$schema", "title", "description", "type", "required", "properties", "items", "additionalProperties"),
    *("enum", "const", "minimum"),
}


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    return json.loads((importlib.resources.files("fxrewrite.report") / "schema.json").read_text())


def has_type(value: Any, name: str) -> bool:
    return isinstance(value, TYPES[name]) and (not isinstance(value, bool) or name == "boolean")


def violations(value: Any, schema: dict[str, Any], path: str = "$") -> list[str]:
    """Where ``value`` departs from ``schema``; fields that the schema does not describe count too."""
    assert schema.keys() <= KEYWORDS, f"{path}: a keyword that this check does not know"
    names = schema.get("type", [])
    names = [names] if isinstance(names, str) else names
    if names and not any(has_type(value, name) for name in names):
        return [f"{path}: {value!r} is not of type {names}"]
    found = []
    if "const" in schema and value != schema["const"]:
        found.append(f"{path}: {value!r} is not {schema['const']!r}")
    if "enum" in schema and value not in schema["enum"]:
        found.append(f"{path}: {value!r} is not in {schema['enum']}")
    if value is not None and "minimum" in schema and value < schema["minimum"]:
        found.append(f"{path}: {value!r} is below {schema['minimum']}")
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        found += [f"{path}: {name} is missing" for name in schema.get("required", []) if name not in value]
        for name, part in value.items():
            described = fields.get(name, schema.get("additionalProperties"))
            found += (
                violations(part, described, f"{path}.{name}") if described else [f"{path}: {name} is new"]
            )
    if isinstance(value, list):
        for number, part in enumerate(value):
            found += violations(part, schema["items"], f"{path}[{number}]")
    return found


def test_a_report_follows_the_schema(schema):
    assert violations(transformer(3).to_dict(), schema) == []
    assert violations(Report().to_dict(), schema) == []


def test_it_survives_being_written_and_read(schema):
    data = transformer(2).to_dict()
    assert json.loads(json.dumps(data)) == data


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("schema",), 2),
        (("predicted",), "yes"),
        (("notes",), "text"),
        (("captures", 0, "nodes"), -1),
        (("captures", 0, "capture_seconds"), None),
        (("sites", 0, "kind"), "conv"),
        (("sites", 0, "status"), "skipped"),
        (("sites", 0, "code"), 3),
        (("sites", 0, "operands", "q"), 3),
        (("sites", 0, "guards", 0, "verdict"), "maybe"),
        (("sites", 0, "refusals", 0, "requirement"), None),
        (("sites", 0, "new_field"), 1),
    ],
)
def test_the_check_sees_a_departure(schema, path, value):
    data = transformer(1).to_dict()
    part: Any = data
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = value
    assert len(violations(data, schema)) == 1


def test_the_check_sees_a_missing_field(schema):
    data = transformer(1).to_dict()
    del data["sites"][0]["reason"]
    assert violations(data, schema) == ["$.sites[0]: reason is missing"]


def objects(schema: dict[str, Any]) -> list[dict[str, Any]]:
    parts = [*schema.get("properties", {}).values(), *([schema["items"]] if "items" in schema else [])]
    return [schema] * ("properties" in schema) + [inner for part in parts for inner in objects(part)]


def test_every_described_field_is_required(schema):
    assert len(objects(schema)) == 6
    for part in objects(schema):
        assert part["required"] == list(part["properties"])


def test_the_schema_lists_what_the_code_has(schema):
    fields = schema["properties"]["sites"]["items"]["properties"]
    assert schema["properties"]["schema"]["const"] == SCHEMA_VERSION
    assert tuple(fields["kind"]["enum"]) == KINDS
    assert fields["guards"]["items"]["properties"]["verdict"]["enum"] == [v.value for v in Verdict]


def test_values_are_those_of_the_sites():
    report = transformer(1)
    data = report.to_dict()
    assert data["predicted"] is True
    assert data["captures"] == [
        {
            "name": "forward",
            "nodes": 1234,
            "work": 2 * ATTENTION_WORK,
            "capture_seconds": 2.25,
            "rewrite_seconds": 0.5,
        }
    ]
    first, last = data["sites"][0], data["sites"][-1]
    assert first["guards"][1] == {
        "guard": "batch == 1",
        "verdict": "unknown",
        "evidence": "",
        "detail": "",
        "residual": "s0 == 1",
    }
    assert (first["work"], first["bytes"]) == (ATTENTION_WORK, 4 * 24 * 4608 * 128 * 2)
    assert first["operations"][0]["text"] == "k_t = aten.transpose.int(k, -2, -1)"
    assert first["refusals"] == [{"implementation": "amx_bf16", "requirement": "this CPU has no AMX"}]
    assert (first["code"], first["reason"], first["implementation"]) == (None, "", "avx2")
    assert (last["code"], last["reason"]) == ("GUARD", "GUARD: n = 63: 63 % 16 = 15")
    assert last["implementation"] is None

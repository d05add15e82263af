"""Writes assets/web/shared/records.d.ts: the types of a run's records for the page's scripts."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter

from specviz.records.runs import Round
from specviz.views.pages import WEB

FILE = WEB / "shared" / "records.d.ts"
_HEAD = """// The records of a run, written by python -m tools.record_types from specviz/records/runs.py.

"""
_NAMES = {"integer": "number", "number": "number", "string": "string", "boolean": "boolean", "null": "null"}


def record_types() -> str:
    """A type for `Round` and for each record in it, as TypeScript."""
    schema = TypeAdapter(Round).json_schema(mode="serialization")
    records = schema.pop("$defs") | {"Round": schema}
    return _HEAD + "\n".join(_record(name, record) for name, record in records.items())


def _record(name: str, schema: dict[str, Any]) -> str:
    needed = schema.get("required", ())
    fields = (
        f"  {field}{'' if field in needed else '?'}: {_type(kind)};\n" for field, kind in schema["properties"].items()
    )
    return f"export type {name} = {{\n{''.join(fields)}}};\n"


def _type(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return schema["$ref"].rsplit("/", 1)[1]
    if "anyOf" in schema:
        return " | ".join(map(_type, schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(f'"{value}"' for value in schema["enum"])
    if schema["type"] != "array":
        return _NAMES[schema["type"]]
    if "prefixItems" in schema:
        return f"[{', '.join(map(_type, schema['prefixItems']))}]"
    items = _type(schema["items"])
    return f"({items})[]" if " " in items else f"{items}[]"


if __name__ == "__main__":
    FILE.write_text(record_types(), encoding="utf-8")

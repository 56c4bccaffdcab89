"""Checks an OpenAPI document against the specification's own schema, and its examples against their schemas.

openapi.py PATH, with COMFY_BASE_URL in the environment
"""

import os
import sys

import jsonschema_rs
import requests
from schemathesis.specs.openapi.definitions import OPENAPI_30_VALIDATOR

document = requests.get(os.environ["COMFY_BASE_URL"] + sys.argv[1]).json()
wrong = [f"{'/'.join(map(str, error.instance_path))}: {error.message}" for error in OPENAPI_30_VALIDATOR.iter_errors(document)]
examples = 0


def plain(schema):
    """As plain JSON Schema, which has no `nullable`."""
    if isinstance(schema, list):
        return [plain(it) for it in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {name: plain(value) for name, value in schema.items() if name not in ("nullable", "example")}
    return {"anyOf": [converted, {"type": "null"}]} if schema.get("nullable") is True else converted


components = plain(document["components"])


def check(schema, example, where):
    global examples
    examples += 1
    validator = jsonschema_rs.Draft4Validator({"allOf": [plain(schema)], "components": components})
    wrong.extend(f"example of {where}: {error.message}" for error in validator.iter_errors(example))


def walk(value, where):
    if isinstance(value, dict):
        if "example" in value and isinstance(value.get("schema", value), dict):
            check(value.get("schema", value), value["example"], where)
        for name, inner in value.items():
            if name not in ("example", "enum"):
                walk(inner, f"{where}/{name}")
    elif isinstance(value, list):
        for at, inner in enumerate(value):
            walk(inner, f"{where}/{at}")


walk(document, "")
assert not wrong, "\n".join(wrong)
assert examples > 10, f"only {examples} examples found"
print(f"valid: {len(document['paths'])} paths, {examples} examples")

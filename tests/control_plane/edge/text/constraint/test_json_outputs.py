"""Whatever is drawn under a schema's masks is valid under the schema."""

import json
import random
from typing import Any

import jsonschema
import pytest
from fakes.text.byte_constraints import constraint_of, drawn_output

from control_plane.edge.text.constraint.grammar import json_schema_grammar

TEXT = {"type": "string", "maxLength": 6}
PERSON = {"name": TEXT, "age": {"type": "integer", "minimum": -5, "maximum": 120}, "tags": {"type": "array", "items": TEXT, "maxItems": 3}}
LEAVES = {"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 1}
TREE = {
    "type": "object",
    "properties": {"value": {"type": "number", "minimum": 0, "maximum": 9}, "leaves": LEAVES},
    "required": ["value"],
    "additionalProperties": False,
}
SCHEMAS: list[dict[str, Any]] = [
    {"type": "object", "properties": PERSON, "required": ["name", "age"], "additionalProperties": False},
    {"anyOf": [{"enum": ["a", 1, None, [True]]}, {"type": "string", "pattern": "^[a-z]{2}-[0-9]{3}$"}, {"type": "boolean"}]},
    {"$ref": "#/$defs/tree", "$defs": {"tree": TREE}},
    {"type": "string", "format": "date-time"},
]


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_output_is_valid(schema: dict[str, Any]) -> None:
    grammar = json_schema_grammar(json.dumps(schema))
    for seed in range(25):
        jsonschema.validate(json.loads(drawn_output(constraint_of(grammar), random.Random(seed))), schema)

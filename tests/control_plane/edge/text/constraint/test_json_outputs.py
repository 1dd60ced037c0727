"""Whatever is drawn under a schema's masks is valid under the schema."""

import json
import random
from typing import Any

import jsonschema
import pytest
from fakes.constraints import allowed_ids, constraint_of
from fakes.tokenizers import EOS

from control_plane.edge.text.constraint.grammar import json_schema_grammar
from control_plane.edge.text.constraint.token_constraint import TokenConstraint

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


def drawn(constraint: TokenConstraint, draw: random.Random) -> bytes:
    """Tokens drawn from the masks, blanks and escapes rarely, an end as soon as there can be one half of the time."""
    output = bytearray()
    while len(output) < 2000:
        allowed = sorted(allowed_ids(constraint))
        if EOS in allowed and (len(allowed) < 3 or draw.random() < 0.5):
            return bytes(output)
        likely = [token_id for token_id in allowed if token_id < 256 and chr(token_id) not in " \t\r\n\\"] or allowed
        output.append(draw.choice(likely))
        constraint.push(output[-1])
    pytest.fail(f"no end: {bytes(output[-100:])!r}")


@pytest.mark.parametrize("schema", SCHEMAS)
def test_every_output_is_valid(schema: dict[str, Any]) -> None:
    grammar = json_schema_grammar(json.dumps(schema))
    for seed in range(25):
        jsonschema.validate(json.loads(drawn(constraint_of(grammar), random.Random(seed))), schema)

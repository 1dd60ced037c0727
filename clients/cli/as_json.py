"""Results as JSON."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def to_json(result: "DataclassInstance", **more: Any) -> str:
    """One line; bytes become lists of numbers."""
    return json.dumps({**more, **asdict(result)}, default=list, ensure_ascii=False)

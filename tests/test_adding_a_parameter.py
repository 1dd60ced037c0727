"""docs/adding-a-parameter.md, held against where min_p stands in the code."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PRODUCT = ("control_plane", "worker", "kernels", "clients", "pypto_serving", "protos")


def test_the_list_has_every_place_of_a_parameter() -> None:
    listed = re.findall(r"^\| \d+ \| `([^`]+)` ", (ROOT / "docs/adding-a-parameter.md").read_text(), re.MULTILINE)
    files = [path for folder in PRODUCT for path in (ROOT / folder).rglob("*.*") if path.suffix in (".py", ".proto", ".cpp", ".h")]
    places = {str(path.relative_to(ROOT)) for path in files if "_pb2" not in path.name and re.search(r"\bmin_p\b", path.read_text())}
    beside = {"worker/warm_up.py", "clients/gateway/schemas/common.py", "clients/gateway/translation/common.py"}
    assert set(listed) == places - beside
    assert len(listed) <= 9

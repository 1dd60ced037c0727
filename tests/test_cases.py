"""Every case that this service promises to handle has a test with its name."""

import re
from pathlib import Path

_NUM_CASES = {"txt": 7, "stop": 11, "val": 14, "smp": 7, "lpu": 7, "idn": 4, "pfx": 8, "chk": 8, "met": 5, "mod": 14}
_NUM_CASES |= {"can": 9, "wrk": 9, "kvx": 6, "rpc": 8, "ops": 8, "sch": 6, "tpl": 9, "tkz": 10}
#: Areas that are on their way: the numbers that have tests.
_FINISHED = {"net": (1, 2, 3), "hst": (1, 2, 3, 4, 5, 6, 7)}
_GATEWAY = {f"gwy_{number:02}" for number in range(1, 8)}  # some of them are about templates, which are here already
_CASES = {f"{area}_{number:02}" for area, count in _NUM_CASES.items() for number in range(1, count + 1)}
_CASES |= {f"{area}_{number:02}" for area, numbers in _FINISHED.items() for number in numbers}


def test_every_case_has_a_test() -> None:
    texts = (path.read_text() for path in Path(__file__).parent.rglob("test_*.py"))
    names = [name for text in texts for name in re.findall(r"^ *(?:async )?def test_(\w+)", text, re.MULTILINE)]
    areas = "|".join({*_NUM_CASES, *_FINISHED, "gwy"})
    tested = {case for name in names for case in re.findall(rf"(?:{areas})_\d\d(?=_|$)", name)}
    assert not sorted(_CASES - tested)
    assert not sorted(tested - _CASES - _GATEWAY), "these cases do not exist"

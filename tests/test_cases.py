"""Every case that this service promises to handle has a test with its name, and a line in docs/cases.md."""

import re
from pathlib import Path

_TESTS = Path(__file__).parent

_NUM_CASES = {"txt": 7, "stop": 11, "val": 14, "smp": 7, "lpu": 7, "idn": 4, "pfx": 8, "chk": 8, "met": 5, "mod": 14}
_NUM_CASES |= {"can": 9, "wrk": 9, "kvx": 6, "rpc": 8, "ops": 8, "sch": 6, "tpl": 9, "tkz": 10, "gwy": 7}
#: Areas that are on their way: the numbers that have tests.
_FINISHED = {"net": (1, 2, 3), "hst": (1, 2, 3, 4, 5, 6, 7)}
_CASES = {f"{area}_{number:02}" for area, count in _NUM_CASES.items() for number in range(1, count + 1)}
_CASES |= {f"{area}_{number:02}" for area, numbers in _FINISHED.items() for number in numbers}


def test_every_case_has_a_test() -> None:
    areas = "|".join({*_NUM_CASES, *_FINISHED})
    tested = {case for name in _names_of_tests() for case in re.findall(rf"(?:{areas})_\d\d(?=_|$)", name)}
    assert not sorted(_CASES - tested)
    assert not sorted(tested - _CASES), "these cases do not exist"


def test_every_case_has_a_line_that_names_a_test() -> None:
    page = (_TESTS.parent / "docs" / "cases.md").read_text()
    lines = re.findall(r"^\| ([A-Z]+-\d\d) \| .+ \| `test_(\w+)` \|$", page, re.MULTILINE)
    cases = [case.lower().replace("-", "_") for case, _ in lines]
    assert len(cases) == len(set(cases)) and set(cases) == _CASES
    names = set(_names_of_tests())
    assert not [name for case, (_, name) in zip(cases, lines, strict=True) if case not in name or name not in names]


def _names_of_tests() -> list[str]:
    texts = (path.read_text() for path in _TESTS.rglob("test_*.py"))
    return [name for text in texts for name in re.findall(r"^ *(?:async )?def test_(\w+)", text, re.MULTILINE)]

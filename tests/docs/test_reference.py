"""The generated pages, and what the written ones say of flags and of each other."""

import re
from pathlib import Path

import pytest
from harness.documentation import ROOT, documents, spans

from scripts.flag_reference import programs
from scripts.generate_reference import FOLDER, pages

_OF_OTHERS = {"--scale", "--build", "--build-arg", "--constraint"}


def test_the_reference_is_what_protos_and_flags_say() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.md")}
    assert committed == pages(), "run `make docs`"


@pytest.mark.parametrize("path", documents(), ids=lambda path: path.name)
def test_flags_in_the_documents_exist(path: Path) -> None:
    known = set().union(*(program.flags() for program in programs())) | _OF_OTHERS | _flags_of_tools()
    named = {flag for span in spans(path) for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z](?![\w-])", span.text)}
    assert named - known == set()


def _flags_of_tools() -> set[str]:
    """Flags of benchmarks, scripts and the build of kernels."""
    sources = [*(ROOT / "benchmarks").rglob("*.py"), *(ROOT / "scripts").glob("*.py"), ROOT / "kernels/cpu/build.py"]
    return {flag for source in sources for flag in re.findall(r'"(--[a-z-]+)"', source.read_text(encoding="utf-8"))}


@pytest.mark.parametrize("path", [*documents(), ROOT / "CHANGELOG.md", *FOLDER.glob("*.md")], ids=lambda path: path.name)
def test_links_in_the_documents_lead_somewhere(path: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", path.read_text(encoding="utf-8")):
        linked = path.parent / target if target else path
        assert linked.exists(), f"{target} is not there"
        assert not anchor or anchor in _anchors(linked), f"{target} has no #{anchor}"


def _anchors(path: Path) -> set[str]:
    """As GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

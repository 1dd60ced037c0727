"""What the CPU can do, asked of torch and of Linux."""

from pathlib import Path

import pytest
import torch

from kernels.cpu import capabilities, products
from kernels.cpu.extension import LEVELS

CPU_INFO = Path("/proc/cpuinfo")
NEEDED = {need for _, needs in LEVELS.values() for need in needs} | {
    need for kernels in products._KERNELS.values() for *_, needs in kernels for need in needs
}


@pytest.mark.skipif(not CPU_INFO.exists() or not hasattr(torch.cpu, "get_capabilities"), reason="not on this system, or with this torch")
def test_linux_says_what_torch_says():
    told, known = capabilities.read_cpu_info(CPU_INFO.read_text()), torch.cpu.get_capabilities()
    assert {need: told.get(need, False) for need in NEEDED} == {need: known.get(need, False) for need in NEEDED}


def test_torch_is_asked_where_it_knows(monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True}, raising=False)
    assert capabilities.of_this_cpu() == {"avx2": True}


def test_without_torchs_answer_the_kernels_have_the_same_level(monkeypatch):
    expected = {need: bool(capabilities.of_this_cpu().get(need)) for need in NEEDED}
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    assert {need: bool(capabilities.of_this_cpu().get(need)) for need in NEEDED} == expected


def test_names_of_linux_are_those_of_torch():
    first = "processor\t: 0\nmodel name\t: A CPU @ 2 GHz: fast\nflags\t\t: fpu pni abm fma avx512f\n"
    told = capabilities.read_cpu_info(first + "\nflags : avx2\n")
    assert {name for name, has in told.items() if has is True} == {"sse3", "lzcnt", "fma3", "avx512_f"}
    assert told["cpu_name"] == "A CPU @ 2 GHz: fast"


@pytest.mark.parametrize("text", ["", "processor : 0\nFeatures : fp asimd bf16\n"])
def test_another_architecture_has_none_of_them(text):
    assert True not in capabilities.read_cpu_info(text).values()


@pytest.mark.parametrize("line", ["CPU implementer : 0x48", "CPU part : 0xd02", "Features : fp asimd bf16"])
def test_arm_processors_are_told_apart(line):
    one = "processor : 0\nFeatures : fp asimd\nCPU implementer : 0x41\nCPU part : 0xd01\n"
    assert capabilities.read_cpu_info(one) != capabilities.read_cpu_info(one + line)

"""What is wrong with a directory that is to hold a model, in words that both planes use."""

import json
import re
import stat
from pathlib import Path

from pypto_serving.wire.contract import MAX_NAME_LENGTH

_PICKLE_SUFFIXES, _GGUF_SUFFIX = (".bin", ".pt", ".pth", ".ckpt"), ".gguf"
_POINTER_HEAD = b"version https://git-lfs"


def check_directory(directory: Path) -> None:
    """Raise ValueError with one line when there is no such directory."""
    try:
        mode = directory.stat().st_mode
    except FileNotFoundError:
        hint = "; nothing is fetched from a model hub: download the model, and name its directory"
        is_of_a_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", str(directory))
        raise ValueError(f"{directory}: no such directory{hint if is_of_a_hub else ''}") from None
    except OSError as error:
        raise ValueError(f"{directory}: {error.strerror}") from None
    if directory.suffix == _GGUF_SUFFIX and stat.S_ISREG(mode):
        raise ValueError(_describe_gguf(directory))
    if not stat.S_ISDIR(mode):
        raise ValueError(f"{directory}: not a directory")


def describe_missing_weights(directory: Path) -> str:
    """Why there are no safetensors in it."""
    files = sorted(directory.glob("*"))
    pickles = [path.name for path in files if path.suffix in _PICKLE_SUFFIXES]
    if gguf := [path for path in files if path.suffix == _GGUF_SUFFIX]:
        return _describe_gguf(gguf[0])
    if pickles:
        return f"{directory}: holds weights only as pickle ({pickles[0]}), which is never loaded; convert them to safetensors"
    return f"{directory}: no *.safetensors files of a model: neither model.safetensors nor model.safetensors.index.json is there"


def check_no_pointer(path: Path, head: bytes) -> None:
    """Raise ValueError when `head`, with which a file begins, is that of what Git leaves in its place until LFS fetches it."""
    if head.startswith(_POINTER_HEAD):
        raise ValueError(f"{path}: only a pointer of Git LFS, not the file itself: run `git lfs pull` where it comes from")


def _describe_gguf(file: Path) -> str:
    return f"{file}: GGUF is not supported, safetensors are needed; `pypto-serving convert` converts what it knows"


def name_model(directory: Path) -> str:
    """The model in a directory, for people: where it lies, its class and its vocabulary, at most so long as names may be."""
    try:
        config = json.loads((directory / "config.json").read_bytes())
        shown = f" ({config['architectures'][0]}, vocab_size {config['vocab_size']})"
    except (OSError, ValueError, TypeError, LookupError):  # whoever reads it in earnest says what is wrong
        shown = ""
    printable = "".join(each if each.isprintable() else "?" for each in f"{directory.absolute()}{shown}")
    return printable[-MAX_NAME_LENGTH:]


def describe_difference(they: str, theirs: str, we: str, ours: str) -> str:
    """Why two processes with other models do not work together."""
    what = "files of another content under the same name" if theirs == ours else "another model"
    return f"{they} has {theirs}, {we} has {ours}: {what}; --model has to be the same"

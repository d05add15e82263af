"""Tries a tokenizer; if it cannot be used, makes a sentence that names the file and a way out.

transformers says of most that it "couldn't instantiate the backend tokenizer", so the files themselves are looked at.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase
from transformers.utils.import_utils import is_protobuf_available, is_sentencepiece_available, is_tiktoken_available

from specviz.models.refusals import Named
from specviz.records.errors import SpecvizError, first_line

#: The packages that read vocabularies in other programs' formats, and how to ask whether each is installed.
PACKAGES = {
    "sentencepiece": is_sentencepiece_available,
    "protobuf": is_protobuf_available,
    "tiktoken": is_tiktoken_available,
}

#: The first of the few lines that git leaves in place of a large file until it is fetched.
_POINTER = b"version https://git-lfs"

_WHOLE, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_MODELS = tuple(
    f"{stem}.model" for stem in ("tokenizer", "spiece", "sentencepiece.bpe", "sentencepiece", "spm", "tiktoken")
)
_FILES = (_WHOLE, _SETTINGS, "config.json", "vocab.json", "merges.txt", "vocab.txt", "tekken.json", *_MODELS)

_TEXT = "A tale é 你 😀"


def try_out(tokenizer: PreTrainedTokenizerBase) -> None:
    """Reads a text and writes all tokens, to raise now if it raises ever; ValueError if all tokens are special ones."""
    vocabulary = sorted(set(tokenizer.get_vocab().values()))
    if not set(vocabulary) - set(tokenizer.all_special_ids):
        raise ValueError("it has no tokens but special ones")
    for special in (True, False):
        tokenizer(_TEXT, add_special_tokens=special)
    tokenizer.decode(vocabulary, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def about_tokenizer(model: Named, error: BaseException, find: Callable[[str], pathlib.Path | None]) -> SpecvizError:
    """Why the model's tokenizer cannot be read, by what is in its files.

    find: the path of one of the model's files by its name; None if it has none.
    """
    found = {file: path for file in _FILES if (path := find(file)) is not None}
    for file, path in found.items():
        if flaw := _flaw(model, file, path):
            return flaw
    if _SETTINGS in found and "auto_map" in json.loads(found[_SETTINGS].read_bytes()):
        return model.complaint(
            "The tokenizer of {name} is code of its repository, and specviz runs no foreign code: take auto_map out of "
            "tokenizer_config.json, so that a tokenizer.json is read; if there is none, save one where the code is "
            "trusted."
        )
    missing = {file: packages for file, path in found.items() if (packages := _missing_for(path))}
    if missing and _WHOLE not in found:
        file, packages = missing.popitem()
        return model.complaint(
            "To read the {file} of {name}, packages are missing: run pip install {packages}, or put a tokenizer.json "
            "beside it.",
            file=file,
            packages=packages,
        )
    if _WHOLE not in found:
        return model.complaint(
            "{name} has no tokenizer.json, and out of {files} transformers makes no tokenizer: copy there the "
            "tokenizer of the model that it was made from.",
            files=", ".join(found),
        )
    return model.complaint(
        "The tokenizer of {name} cannot be used: {reason}. If its tokenizer.json is right, set tokenizer_class in "
        "tokenizer_config.json to PreTrainedTokenizerFast.",
        reason=first_line(error),
    )


def why_not_fetched(model: Named, file: pathlib.Path) -> SpecvizError | None:
    """Why a file of the model cannot be read yet; None unless git has left only a pointer to it there."""
    with file.open("rb") as opened:
        if opened.read(len(_POINTER)) != _POINTER:
            return None
    return model.complaint(
        "Of {file} in {name} only the pointer of Git LFS is there: fetch the file itself with git lfs pull.",
        file=file.name,
    )


def _flaw(model: Named, file: str, path: pathlib.Path) -> SpecvizError | None:
    """Why one file by itself cannot be read; None if it can."""
    if not_fetched := why_not_fetched(model, path):
        return not_fetched
    data = path.read_bytes()
    try:
        if file == _WHOLE:
            Tokenizer.from_buffer(data).encode(_TEXT)
        elif file.endswith(".json"):
            json.loads(data).keys()
    except Exception as error:
        # The library raises plain Exception.
        return model.complaint(
            "The {file} of {name} is damaged: copy it again ({reason}).", file=file, reason=first_line(error)
        )
    return None


def _missing_for(path: pathlib.Path) -> str | None:
    """The packages that are missing to read a vocabulary in another program's format."""
    if path.suffix != ".model":
        return None
    # SentencePiece writes protocol buffers; tiktoken a line for each token, its bytes in base64 and its number.
    first = path.read_bytes().partition(b"\n")[0]
    reads = ("tiktoken",) if first.rpartition(b" ")[2].isdigit() else ("sentencepiece", "protobuf")
    return " ".join(package for package in reads if not PACKAGES[package]()) or None

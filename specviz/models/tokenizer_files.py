"""Whether a tokenizer reads and writes, and if not, why: a sentence that names the file and a way out.

transformers says of most that it "couldn't instantiate the backend tokenizer", so the files themselves are looked at.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerBase
from transformers.utils.import_utils import is_protobuf_available, is_sentencepiece_available, is_tiktoken_available

from specviz.models.folders import why_not_fetched
from specviz.records.errors import SpecvizError, first_line

#: What reads vocabularies in other programs' formats, and whether it is installed.
PACKAGES = {
    "sentencepiece": is_sentencepiece_available,
    "protobuf": is_protobuf_available,
    "tiktoken": is_tiktoken_available,
}

_WHOLE, _SETTINGS = "tokenizer.json", "tokenizer_config.json"
_MODELS = tuple(
    f"{stem}.model" for stem in ("tokenizer", "spiece", "sentencepiece.bpe", "sentencepiece", "spm", "tiktoken")
)
_FILES = (_WHOLE, _SETTINGS, "config.json", "vocab.json", "merges.txt", "vocab.txt", "tekken.json", *_MODELS)

_TEXT = "A tale é 你 😀"


def try_out(tokenizer: PreTrainedTokenizerBase) -> None:
    """Reads a text and writes all tokens: what raises, raises now. ValueError if there are none but special ones."""
    vocabulary = sorted(set(tokenizer.get_vocab().values()))
    if not set(vocabulary) - set(tokenizer.all_special_ids):
        raise ValueError("it has no tokens but special ones")
    for special in (True, False):
        tokenizer(_TEXT, add_special_tokens=special)
    tokenizer.decode(vocabulary, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def about_tokenizer(
    name: str, field: str, error: BaseException, find: Callable[[str], pathlib.Path | None]
) -> SpecvizError:
    """Why the tokenizer of the model `name` cannot be read, by what is in its files.

    find: the path of one of the model's files by its name; None if it has none.
    """
    found = {file: path for file in _FILES if (path := find(file)) is not None}
    for file, path in found.items():
        if flaw := _flaw(name, field, file, path):
            return flaw
    known = {"name": name, "files": ", ".join(found), "reason": first_line(error)}
    if _SETTINGS in found and "auto_map" in json.loads(found[_SETTINGS].read_bytes()):
        return SpecvizError(
            "The tokenizer of {name} is code of its repository, and specviz runs no foreign code: take auto_map out of "
            "tokenizer_config.json, so that a tokenizer.json is read; if there is none, save one where the code is "
            "trusted.",
            field,
            **known,
        )
    missing = {file: packages for file, path in found.items() if (packages := _missing_for(path))}
    if missing and _WHOLE not in found:
        known["file"], known["packages"] = missing.popitem()
        return SpecvizError(
            "To read the {file} of {name}, packages are missing: run pip install {packages}, or put a tokenizer.json "
            "beside it.",
            field,
            **known,
        )
    if _WHOLE not in found:
        return SpecvizError(
            "{name} has no tokenizer.json, and out of {files} transformers makes no tokenizer: copy there the "
            "tokenizer of the model that it was made from.",
            field,
            **known,
        )
    return SpecvizError(
        "The tokenizer of {name} cannot be used: {reason}. If its tokenizer.json is right, set tokenizer_class in "
        "tokenizer_config.json to PreTrainedTokenizerFast.",
        field,
        **known,
    )


def _flaw(name: str, field: str, file: str, path: pathlib.Path) -> SpecvizError | None:
    """What is wrong with one file by itself."""
    if not_fetched := why_not_fetched(path, name, field):
        return not_fetched
    data, known = path.read_bytes(), {"name": name, "file": file}
    try:
        if file == _WHOLE:
            Tokenizer.from_buffer(data).encode(_TEXT)
        elif file.endswith(".json"):
            json.loads(data).keys()
    except Exception as error:
        # The library raises plain Exception.
        reason = first_line(error)
        return SpecvizError("The {file} of {name} is damaged: copy it again ({reason}).", field, reason=reason, **known)
    return None


def _missing_for(path: pathlib.Path) -> str | None:
    """The packages that are missing to read a vocabulary in another program's format."""
    if path.suffix != ".model":
        return None
    # SentencePiece writes protocol buffers; tiktoken a line for each token, its bytes in base64 and its number.
    first = path.read_bytes().partition(b"\n")[0]
    reads = ("tiktoken",) if first.rpartition(b" ")[2].isdigit() else ("sentencepiece", "protobuf")
    return " ".join(package for package in reads if not PACKAGES[package]()) or None

"""GGUF files, which llama.cpp and Ollama run: finding one, what its header says, and sentences for what is wrong.

transformers unpacks their weights; for that it needs the package `gguf`, which is loaded when there is a file to read.
"""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from transformers import modeling_gguf_pytorch_utils
from transformers.integrations.gguf import read_gguf_metadata
from transformers.utils import logging

from specviz.models.refusals import first_line, is_out_of_memory
from specviz.records.errors import SpecvizError

MAGIC = b"GGUF"

# The bar that transformers shows elsewhere, and that can be turned off.
modeling_gguf_pytorch_utils.tqdm = logging.tqdm

#: Part of a model in several GGUF files, each with a header of its own.
_SPLIT = re.compile(r"-\d{5}-of-(?!00001)\d{5}\.gguf$")

#: Part of a file that was cut up.
_PIECE = re.compile(r"\.gguf\.[\w-]+$")


@dataclass(frozen=True)
class GgufHeader:
    """What a file says of itself."""

    name: str  # for people
    stored: str  # how the weights are stored, in llama.cpp's words: ``Q4_K_M``
    turn_end: int | None  # the token that ends a turn of a chat, where that is not the end of a text


def gguf_at(path: pathlib.Path, field: str) -> pathlib.Path | None:
    """The GGUF file at `path`, or the only one in that folder; None if there is none, or it is a folder in
    transformers' format.

    Raises SpecvizError (this `field`) for several files, and for one that is not whole.
    """
    if path.is_dir():
        whole = not (path / "config.json").is_file()
        found = sorted(one for one in path.glob("*.gguf*") if one.is_file()) if whole else []
    else:
        found = [path] if path.is_file() else []
    known = {"name": found[0].name} if found else {}
    if any(_PIECE.search(one.name) for one in found):
        raise SpecvizError(
            "{name} is a piece of a GGUF file: put the pieces together (cat {whole}.* > {whole}) and name the result.",
            field,
            **known,
            whole=found[0].name.rpartition(".")[0],
        )
    if any(_SPLIT.search(one.name) for one in found):
        raise SpecvizError(
            "{name} is one part of a split GGUF file, and only whole ones can be read: join the parts with "
            "llama-gguf-split --merge and name the result.",
            field,
            **known,
        )
    if len(found) > 1:
        names = ", ".join(one.name for one in found[:6]) + (", …" if len(found) > 6 else "")
        raise SpecvizError("{folder} holds several GGUF files: name one of {names}.", field, folder=path, names=names)
    return next((one.absolute() for one in found if _is_gguf(one, field)), None)


def _is_gguf(file: pathlib.Path, field: str) -> bool:
    with file.open("rb") as opened:
        begins = opened.read(len(MAGIC)) == MAGIC
    if file.suffix == ".gguf" and not begins:
        raise SpecvizError(
            "{name} does not begin as a GGUF file does: download it again, or fetch it with git lfs pull.",
            field,
            name=file.name,
        )
    return begins


def read_header(file: pathlib.Path, field: str) -> GgufHeader:
    """Raises SpecvizError (this `field`) if the file is damaged, or the package that reads it is missing."""
    if importlib.util.find_spec("gguf") is None:
        raise SpecvizError(
            "{name} is a GGUF file, and the package that reads those is missing: pip install gguf.",
            field,
            name=file.name,
        )
    from gguf import LlamaFileType

    with explaining_gguf(file.name, field):
        says, _ = read_gguf_metadata(str(file))
    kinds = {kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType}
    # Ollama's files are called by their hash.
    name = file.stem if file.suffix == ".gguf" else says.get("general.name") or file.name
    kind, turn_end = kinds.get(says.get("general.file_type"), "GGUF"), says.get("tokenizer.ggml.eot_token_id")
    return GgufHeader(name, kind, turn_end)


@contextlib.contextmanager
def explaining_gguf(name: str, field: str) -> Iterator[None]:
    """Turns what the libraries raise over a damaged file, or one of an unknown kind, into a SpecvizError.

    A header that was cut off or overwritten leads them astray in many ways. Running out of memory passes through.
    """
    try:
        yield
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RuntimeError, struct.error) as error:
        if isinstance(error, SpecvizError) or is_out_of_memory(error):
            raise
        if kind := re.search(r"architecture ([\w.-]+) is not supported|Unknown gguf model_type: ([\w.-]+)", str(error)):
            raise SpecvizError(
                "{name} is a GGUF file of the architecture {kind}, which transformers cannot unpack: name the model "
                "in transformers' format.",
                field,
                name=name,
                kind=kind[1] or kind[2],
            ) from error
        raise SpecvizError(
            "The GGUF file {name} is damaged or incomplete: download it again ({reason}).",
            field,
            name=name,
            reason=first_line(error),
        ) from error

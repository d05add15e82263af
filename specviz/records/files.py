"""Files: from bytes to text, whatever wrote them; traces; what is packed; what to say where none can be written."""

import json
import os
import pathlib
import zlib
from typing import Any

from pydantic_core import from_json

from specviz.records.errors import SpecvizError, quoted

#: More is not unpacked: a small gzip file may hold any amount of zeros.
MOST_UNPACKED = 64_000_000

#: How a gzip file begins.
_GZIP = b"\x1f\x8b"

#: What files that are no text begin with, and what they are called.
_PACKED = {
    b"PK\x03\x04": "zip",
    b"PAR1": "Parquet",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ\x00": "xz",
    b"BZh": "bzip2",
    b"7z\xbc\xaf\x27\x1c": "7z",
    b"SQLite format 3\x00": "SQLite",
    b"ARROW1": "Arrow",
    b"%PDF": "PDF",
}
_LONGEST = max(map(len, _PACKED))


def decoded(data: bytes, errors: str = "replace") -> str:
    """The text of a file in UTF-8, UTF-16 or UTF-32, with a byte order mark or without, packed by gzip or not.

    errors: what becomes of bytes that are no text, as in `bytes.decode`. Raises SpecvizError for files of other
    programs, and for a gzip file that is cut off or too large.
    """
    if data.startswith(_GZIP):
        data = _unpacked(data)
    if kind := _kind(data):
        raise SpecvizError("This is a {kind} file, not text: unpack or convert it first.", kind=kind)
    return data.decode(json.detect_encoding(data), errors=errors)


def check_schema(schema: Any, expected: str) -> None:
    """Raises SpecvizError (field ``trace``) for another schema than the one that is expected, or none."""
    if not schema:
        raise SpecvizError(
            "This is not a specviz trace: it names no schema; {expected} is expected.",
            "trace",
            expected=quoted(expected),
        )
    if schema != expected:
        raise SpecvizError(
            "This is not a trace of this version of specviz: its schema is {found}; {expected} is expected.",
            "trace",
            found=quoted(schema),
            expected=quoted(expected),
        )


def path_named(name: str | os.PathLike[str]) -> pathlib.Path:
    """A file by its name or path. Raises SpecvizError (field ``path``) for what is neither."""
    try:
        return pathlib.Path(name)
    except TypeError as error:
        raise SpecvizError(
            "A file is named by a text or a path, not by {value}.", "path", value=quoted(name)
        ) from error


def read_json(path: str | os.PathLike[str]) -> Any:
    """The values in a file of a run. Raises SpecvizError with the reason if it cannot be read (field ``trace``), or if
    it is not the name of a file (field ``path``)."""
    file = path_named(path)
    try:
        return from_json(file.read_bytes().removeprefix(b"\xef\xbb\xbf"))  # as some editors write
    except OSError as error:
        raise SpecvizError("The trace cannot be read: {reason}.", "trace", reason=error.strerror) from error
    except ValueError as error:
        raise SpecvizError("The trace is not a JSON file: {reason}.", "trace", reason=str(error)) from error


def packing_of(file: pathlib.Path) -> str | None:
    """What a file of this kind is called, which is no text; ``gzip`` included."""
    with file.open("rb") as opened:
        data = opened.read(_LONGEST)
    return "gzip" if data.startswith(_GZIP) else _kind(data)


def no_temporary_folder(variable: str, error: OSError) -> SpecvizError:
    """What to say where no temporary file can be made. variable: of the environment, which would name the folder."""
    return SpecvizError(
        "There is no temporary folder to write to ({reason}): set {name} to one.",
        name=variable,
        reason=error.strerror,
    )


def _kind(data: bytes) -> str | None:
    return next((name for beginning, name in _PACKED.items() if data.startswith(beginning)), None)


def _unpacked(data: bytes) -> bytes:
    """What a gzip file holds, of all its parts where several were put together."""
    text = b""
    while data.startswith(_GZIP):
        part = zlib.decompressobj(wbits=31)
        try:
            text += part.decompress(data, MOST_UNPACKED + 1 - len(text))
        except zlib.error as error:
            raise SpecvizError("The gzip file is damaged: {reason}.", reason=str(error)) from error
        if len(text) > MOST_UNPACKED:
            raise SpecvizError("The gzip file holds too much: at most {most} bytes are read.", most=MOST_UNPACKED)
        if not part.eof:
            raise SpecvizError("The gzip file is cut off: copy it again.")
        data = part.unused_data
    return text

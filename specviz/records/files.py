"""From a file's bytes to its text, whatever wrote it."""

import json
import zlib

from specviz.records.errors import SpecvizError

#: More is not unpacked: a small gzip file may hold any amount of zeros.
MOST_UNPACKED = 64_000_000

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


def decoded(data: bytes, errors: str = "replace") -> str:
    """The text of a file in UTF-8, UTF-16 or UTF-32, with a byte order mark or without, packed by gzip or not.

    errors: what becomes of bytes that are no text, as in `bytes.decode`. Raises SpecvizError for files of other
    programs, and for a gzip file that is cut off or too large.
    """
    if data.startswith(b"\x1f\x8b"):
        data = _unpacked(data)
    for beginning, name in _PACKED.items():
        if data.startswith(beginning):
            raise SpecvizError("This is a {kind} file, not a text: unpack or convert it first.", kind=name)
    return data.decode(json.detect_encoding(data), errors=errors)


def _unpacked(data: bytes) -> bytes:
    """What a gzip file holds, of all its parts where several were put together."""
    text = b""
    while data.startswith(b"\x1f\x8b"):
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

"""What commands print, write and read; and that nothing measured is lost by an interruption."""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence

from specviz.bench.contest import INTERRUPTED
from specviz.records.errors import SpecvizError
from specviz.records.files import decoded, no_temporary_folder
from specviz.views.terminal import harmless

#: The options that name a file to write.
FILES = ("json", "html", "csv", "junit")


def progress(line: str) -> None:
    """Prints a line that is not part of the result; it may quote what a server or a file says."""
    print(harmless(line), file=sys.stderr, flush=True)


def check_files(options: argparse.Namespace) -> None:
    """Raises SpecvizError, before anything is run, if a file that an option names cannot be written, or the temporary
    files of the libraries."""
    try:
        tempfile.gettempdir()
    except FileNotFoundError as error:
        raise no_temporary_folder("TMPDIR", error) from error
    for option in FILES:
        if path := getattr(options, option, None):
            with _writing(option, path):
                existed = path.exists()
                path.open("ab").close()
                if not existed:
                    path.unlink()


def write(options: argparse.Namespace, option: str, content: str | Callable[[pathlib.Path], object]) -> None:
    """Writes the file that an option names, if it names one: a text, or whatever a function writes there."""
    if path := getattr(options, option):
        with _writing(option, path):
            if isinstance(content, str):
                # The name of a file, or what a student raises, may hold what is no character.
                path.write_text(content, encoding="utf-8", errors="replace")
            else:
                content(path)


def write_all(options: argparse.Namespace, contents: Mapping[str, str | Callable[[pathlib.Path], object]]) -> None:
    """Writes the files of several options, by option. One that cannot be written does not keep the others from it: the
    first error is raised when all were tried."""
    failed: list[SpecvizError] = []
    for option, content in contents.items():
        try:
            write(options, option, content)
        except SpecvizError as error:
            failed.append(error)
    if failed:
        raise failed[0]


@contextlib.contextmanager
def _writing(option: str, path: pathlib.Path) -> Iterator[None]:
    """Turns an error of the file system into a sentence: a folder that does not exist, or a disk that is full."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise SpecvizError(
            "{path} cannot be written ({reason}): name a file in a folder that you may write to.",
            option,
            path=path,
            reason=error.strerror,
        ) from error


def read(path: pathlib.Path, field: str) -> str:
    """The text of a file in any encoding, gzip's too; of the input for ``-``. Raises SpecvizError for `field`."""
    try:
        return decoded(sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes())
    except OSError as error:
        raise SpecvizError("The file cannot be read: {reason}.", field, reason=error.strerror) from error
    except SpecvizError as error:
        raise error.at(field) from error


@contextlib.contextmanager
def keeping(text: Callable[[bool], str], write: Callable[[bool], None] = lambda interrupted: None) -> Iterator[None]:
    """Prints and writes the measurements, whatever ends the measuring; nothing if there is no text.

    text, write: get True if the measuring was interrupted.
    """
    interrupted = True
    try:
        yield
        interrupted = False
    finally:
        if shown := harmless(text(interrupted)):
            try:
                print(shown, flush=True)
            finally:
                write(interrupted)


def with_faults(table: str, failed: Sequence[Mapping[str, str]], interrupted: bool) -> str:
    """A table, the failures with their reasons, and a line if it was interrupted; empty if nothing was measured."""
    faults = [f"✗ {entry['title']}: {entry['reason']}" for entry in failed]
    parts = [table, "\n".join(faults), INTERRUPTED * interrupted] if table or faults else []
    return "\n\n".join(filter(None, parts))

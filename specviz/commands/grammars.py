"""The option that names a file with a grammar, and the grammar in it."""

from __future__ import annotations

import argparse
import pathlib

from specviz.commands.output import read
from specviz.records.errors import SpecvizError
from specviz.records.settings import SETTINGS


def add_grammar_option(parser: argparse.ArgumentParser) -> None:
    about = f"{SETTINGS['grammar'].about}; - is the input"
    parser.add_argument("--grammar", type=pathlib.Path, metavar="FILE", help=about)


def grammar_of(options: argparse.Namespace) -> str:
    """The grammar in the file that the option names; empty without one. Raises SpecvizError."""
    if options.grammar is None:
        return ""
    grammar = read(options.grammar, "grammar")
    if not grammar.strip():
        raise SpecvizError("The file is empty: leave the grammar out to write without one.", "grammar")
    return grammar

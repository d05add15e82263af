"""`compare-texts`: two greedy texts that should be equal, and the target's verdict where they differ."""

import argparse
import pathlib

from specviz.commands import pairs
from specviz.commands.output import progress, read
from specviz.foreign.answers import written
from specviz.records.errors import SpecvizError
from specviz.records.settings import SETTINGS
from specviz.records.words import words
from specviz.views.terminal import harmless, parting_lines

ABOUT = "two greedy texts should be equal: do they differ by rounding, or is one of them wrong?"


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    for name in ("one", "other"):
        what = "the text after the prompt, its token ids as a JSON list, or the whole answer in JSON"
        add(name, type=pathlib.Path, metavar=name.upper(), help=what)
    add("--prompt", default="", metavar="TEXT", help="the prompt that both texts continue")
    add("--chat", action="store_true", help=SETTINGS["chat"].about)
    pairs.add_pair_options(parser)


def main(options: argparse.Namespace) -> int:
    """Exit status 1 if one of them is wrong."""
    left, right = (_written(options, name) for name in ("one", "other"))
    from specviz.bench.two_texts import cut, parting

    pair = pairs.load(options, "plain")
    divergence = parting(pair, *cut(pair, left, right, options.prompt, options.chat))
    for line in parting_lines(divergence, (str(options.one), str(options.other)), words()):
        print(harmless(line))
    return int(divergence is not None and any(divergence.wrong))


def _written(options: argparse.Namespace, name: str) -> list[int] | str:
    """What one of the engines wrote; says what else the file has."""
    path = getattr(options, name)
    try:
        text, left_out = written(read(path, name), options.prompt)
    except SpecvizError as error:
        raise error.at(name) from error
    for part in left_out:
        progress(f"{path}: {part} is not compared")
    return text

"""`run`: continues a prompt; the colour of each token shows where it came from."""

from __future__ import annotations

import argparse
import pathlib
import sys
from dataclasses import replace

from specviz.commands import pairs
from specviz.commands.grammars import add_grammar_option, grammar_of
from specviz.commands.output import write_all
from specviz.drafters import DRAFTERS
from specviz.records.metrics import Tally
from specviz.records.settings import AUTO, PASSES, SETTINGS, RunSettings, Setting
from specviz.records.streams import discard_output
from specviz.records.words import words
from specviz.views import terminal
from specviz.views.remarks import remarks

ABOUT = "continue a prompt; each token's colour shows where it came from"

_METAVARS = {int: "N", float: "X", str: "TEXT"}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("prompt", help=SETTINGS["prompt"].about)
    for name, row in SETTINGS.items():
        if name not in ("prompt", "chat", "grammar"):
            _add_setting(parser, name, row)
    add_grammar_option(parser)
    add("--stop", action="append", default=[], metavar="TEXT", help="end the run at this text; repeatable")
    add("--chat", action="store_true", help=SETTINGS["chat"].about)
    add("--json", type=pathlib.Path, metavar="FILE", help="write the whole trace to this file")
    add("--html", type=pathlib.Path, metavar="FILE", help="write a page that shows the run offline to this file")
    add(
        "--passes",
        choices=PASSES,
        default="cached",
        help="plain: the models' own; cached: those compiled earlier, if any; auto: compile them first, which takes "
        "a minute or two (default: %(default)s)",
    )
    pairs.add_pair_options(parser)


def _add_setting(parser: argparse.ArgumentParser, name: str, row: Setting) -> None:
    """The option of a setting, by its row in the table."""
    option, default, about = f"--{name.replace('_', '-')}", row.default, row.about
    if name == "drafter":
        default, about = None, f"{', '.join(DRAFTERS)}, or plain (default: the fastest known for the pair)"
    elif default not in (None, ""):
        about = f"{about} (default: {default})"
    names = [option, "--gamma"] if name == "num_draft_tokens" else [option]
    kind = _count_or_auto if AUTO in row.choices else row.kind
    parser.add_argument(*names, type=kind, default=default, metavar=_METAVARS[row.kind], help=about)


def _count_or_auto(text: str) -> int | str:
    if text != AUTO and not text.lstrip("-").isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor {AUTO}")
    return text if text == AUTO else int(text)


def main(options: argparse.Namespace) -> int:
    settings = RunSettings.of(vars(options) | {"grammar": grammar_of(options)})
    from specviz.decoding.engine import rounds
    from specviz.decoding.record import collect
    from specviz.decoding.request import prepare
    from specviz.drafters.registry import usual

    pair = pairs.load(options, options.passes)
    if options.drafter is None:
        settings = replace(settings, drafter=usual(pair, preparing=False))
    request = prepare(pair, settings)
    colour, counts, done = terminal.wants_colour(sys.stdout), Tally(), []
    print(terminal.harmless(request.prompt.text), end="", flush=True)
    try:
        for round_ in rounds(request):
            done.append(round_)
            counts.add(round_)
            print(terminal.paint_round(round_, colour), end="", flush=True)
    except KeyboardInterrupt:
        print(" ^C", file=sys.stderr)
    except BrokenPipeError:
        # Nobody reads on, as after `head`; what was asked for in files is written all the same.
        discard_output(sys.stdout)
    run = collect(request, done)
    summary = f"{terminal.summary(counts, run.stop_reason, run.rule)} · {run.pair.passes} passes"
    print(f"\n\n{terminal.legend(colour)}\n{summary}", file=sys.stderr)
    for remark in remarks(done, len(request.prompt.ids), run.coins):
        print(words().translated(remark), file=sys.stderr)
    if options.json or options.html:
        from specviz.views.pages import run_page

        def save_page(path: pathlib.Path) -> None:
            path.write_text(run_page(run), encoding="utf-8")

        write_all(options, {"json": run.save, "html": save_page})  # of --json, too, a name in .html gets the page
    return 0

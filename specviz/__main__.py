"""The command line: `run` a prompt, `check` and `bench` this machine, `advise` on a drafter, watch and judge a
`server`, read the `metrics` of one, `compare-texts` of other engines, `grade` homework, the `gain` of a class, `serve`
the page, write it as a `static` folder, `compile` a pair beforehand.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

#: The handler of Ctrl-C while a command runs; during the imports, and at the end, it ends the process silently.
INTERRUPTION = signal.getsignal(signal.SIGINT)
if __name__ == "__main__" and INTERRUPTION is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from specviz.commands import (
    advise,
    bench,
    check,
    compare_texts,
    compile,
    gain,
    grade,
    metrics,
    output,
    run,
    serve,
    server,
    static,
)
from specviz.records.errors import SpecvizError
from specviz.records.streams import carried_out
from specviz.servers.connection import KEY

#: In the order of --help; a module's name is the command's.
COMMANDS = (run, bench, advise, check, server, metrics, compare_texts, grade, gain, serve, static, compile)

#: By command, its arguments without a name.
ARGUMENTS = {run: ("prompt",), metrics: ("metrics",), compare_texts: ("one", "other"), static: ("folder",)}
ARGUMENTS |= {server: ("server",), grade: ("homework",), gain: ("answers",)}


#: Options that are written otherwise than the field that they fill.
OTHERWISE = {"server_model": "--model"}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; an error the user can fix is reported in one sentence, with exit status 2."""
    return carried_out(lambda: _carry_out(arguments))


def _carry_out(arguments: Sequence[str] | None) -> int:
    options = parser().parse_args(arguments)
    try:
        output.check_files(options)
        return options.command.main(options)
    except SpecvizError as error:
        output.progress(f"specviz: {_blamed(options, error)}{error}")
        return 2


def _blamed(options: argparse.Namespace, error: SpecvizError) -> str:
    """The option or argument that an error is about, as it is written on the command line."""
    if error.field == "server_key":
        return f"{KEY}: "  # a variable, for the shell keeps what was typed
    if error.field is None or error.field not in vars(options):
        return ""
    if error.field in OTHERWISE:
        return f"{OTHERWISE[error.field]}: "
    unnamed = ARGUMENTS.get(options.command, ())
    return f"{error.field}: " if error.field in unnamed else f"--{error.field.replace('_', '-')}: "


def parser() -> argparse.ArgumentParser:
    whole = argparse.ArgumentParser(prog="python -m specviz", description=__doc__)
    adding = whole.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        name = command.__name__.rpartition(".")[2].replace("_", "-")
        added = adding.add_parser(name, help=command.ABOUT)
        command.add_options(added)
        added.set_defaults(command=command)
    return whole


if __name__ == "__main__":
    quiet = signal.signal(signal.SIGINT, INTERRUPTION)
    # Whoever ends a command as `timeout` and job schedulers do gets what was measured so far, as with Ctrl-C.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    status = main()
    signal.signal(signal.SIGINT, quiet)
    sys.exit(status)

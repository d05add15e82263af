"""The command line: `run` a prompt, `check` and `bench` this machine, `advise` on a drafter, read the `metrics` of a
server, `compare-texts` of other engines, `serve` the page, write it as a `static` folder, `compile` a pair beforehand.

Under torchrun, all processes of a `run` or a `bench` share one target, and the first one prints and writes.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import pathlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

#: The handler of Ctrl-C while a command runs; during the imports, and at the end, it ends the process silently.
INTERRUPTION = signal.getsignal(signal.SIGINT)
if __name__ == "__main__" and INTERRUPTION is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from specviz.bench import commands
from specviz.bench.advice import INTERRUPTED
from specviz.drafters import DRAFTERS
from specviz.passes.processes import is_leader, process_count, refuse_more_than_one, should_report
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally
from specviz.records.settings import AUTO, SETTINGS, RunSettings, Setting
from specviz.views import terminal

PASSES = ("plain", "cached", "auto")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; an error the user can fix is reported in one sentence, with exit status 2."""
    streams = (sys.stdout, sys.stderr)
    for stream in streams:
        terminal.take_anything(stream)
    options = _parser().parse_args(arguments)
    try:
        _check_file(options)
        if options.command not in (_run, _bench):
            refuse_more_than_one()
        status = options.command(options)
        sys.stdout.flush()
    except SpecvizError as error:
        if should_report():
            print(f"specviz: {_blamed(options, error)}{error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        for stream in streams:
            terminal.let_go(stream)
        return 141
    if process_count() > 1:
        from specviz.passes.devices import leave

        leave()
    return status


def _check_file(options: argparse.Namespace) -> None:
    """Refuses a place where nothing can be written before anything is run for it."""
    if not is_leader():
        return
    for option in ("json", "html"):
        path = getattr(options, option, None)
        if path is None:
            continue
        there = path.exists()
        with _writing(option, path), path.open("ab"):
            pass
        if not there:
            path.unlink()


@contextlib.contextmanager
def _writing(option: str, path: pathlib.Path) -> Iterator[None]:
    """Within it, a place that cannot be written is refused by a sentence: from the first, or once the disk is full."""
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


def _write(options: argparse.Namespace, option: str, content: str | Callable[[pathlib.Path], object]) -> None:
    """Writes the file that an option names, if it names one: a text, or whatever a function writes there."""
    if path := getattr(options, option):
        with _writing(option, path):
            path.write_text(content, encoding="utf-8") if isinstance(content, str) else content(path)


def _blamed(options: argparse.Namespace, error: SpecvizError) -> str:
    """The option or argument that an error is about, as it is written on the command line."""
    if error.field is None or error.field not in vars(options):
        return ""
    return (
        f"{error.field}: "
        if error.field in ("prompt", "metrics", "one", "other", "folder")
        else f"--{error.field.replace('_', '-')}: "
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specviz", description=__doc__)
    adding = parser.add_subparsers(required=True, metavar="COMMAND")

    run = adding.add_parser("run", help="continue a prompt, tokens coloured by where they came from")
    run.add_argument("prompt", help=SETTINGS["prompt"].about)
    for name, row in SETTINGS.items():
        if name not in ("prompt", "chat"):
            _add_setting(run, name, row)
    run.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end the run at this text; repeatable")
    run.add_argument("--chat", action="store_true", help=SETTINGS["chat"].about)
    run.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the whole trace there")
    run.add_argument("--html", type=pathlib.Path, metavar="FILE", help="write a page there that shows the run offline")
    run.add_argument(
        "--passes",
        choices=PASSES,
        default="cached",
        help="plain: the models' own; cached: compiled ones, if any were compiled before; auto: compile them first, "
        "which takes a minute or two (default: %(default)s)",
    )
    _add_pair(run)
    run.set_defaults(command=_run)

    for command, add_options, about in (
        (_bench, commands.add_bench_options, "measure plain decoding, every drafter and transformers in turn"),
        (
            _advise,
            commands.add_advise_options,
            "measure every drafter that the pair has, and say which to use: a minute",
        ),
        (_check, commands.add_check_options, "try everything once on this device and this pair: about a minute"),
    ):
        added = adding.add_parser(command.__name__[1:], help=about)
        add_options(added)
        _add_pair(added)
        added.set_defaults(command=command)

    metrics = adding.add_parser(
        "metrics", help="what a server says of its own speculation (vLLM, SGLang, llama.cpp, …), as figures"
    )
    what = "answers, a log, a scrape of /metrics, or what a benchmark wrote; - is the input; see docs/metrics.md"
    metrics.add_argument("metrics", type=pathlib.Path, metavar="FILE", help=what)
    metrics.add_argument(
        "--chains", action="store_true", help="every pass drafted one chain of full length (SGLang: topk 1)"
    )
    metrics.add_argument("--cost", type=float, metavar="C", help="the server's c, for the γ that the formula favours")
    about = "speed measured over the same server without drafts, or by requests at once: 1:1.9 32:0.8"
    metrics.add_argument("--speedup", default="", metavar="X", help=about)
    metrics.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the figures there too")
    metrics.set_defaults(command=_metrics)

    comparing = adding.add_parser(
        "compare-texts", help="two greedy texts that should be equal: did they part by rounding, or is one wrong?"
    )
    for name in ("one", "other"):
        what = "a text after the prompt, or its token ids as a JSON list"
        comparing.add_argument(name, type=pathlib.Path, metavar=name.upper(), help=what)
    comparing.add_argument("--prompt", default="", metavar="TEXT", help="what both texts follow")
    comparing.add_argument("--chat", action="store_true", help=SETTINGS["chat"].about)
    _add_pair(comparing)
    comparing.set_defaults(command=_compare_texts)

    serve = adding.add_parser("serve", help="serve the page, like app.py")
    serve.add_argument("--mcp", action="store_true", help="offer the functions of its API as tools of an MCP server")
    serve.set_defaults(command=_serve)

    static = adding.add_parser("static", help="write the page as a folder that needs no server: browsers run the pair")
    static.add_argument("folder", type=pathlib.Path, metavar="FOLDER", help="a new one, or an earlier one of these")
    static.set_defaults(command=_static)

    compiling = adding.add_parser("compile", help="compile a pair's passes ahead of later runs and pages")
    _add_pair(compiling)
    compiling.set_defaults(command=_compile)
    return parser


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


_METAVARS = {int: "N", float: "X", str: "TEXT"}


def _count_or_auto(text: str) -> int | str:
    if text != AUTO and not text.lstrip("-").isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is neither a whole number nor {AUTO}")
    return text if text == AUTO else int(text)


def _add_pair(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", metavar="NAME", help="folder, GGUF file or Hub id (default: the embedded pair)")
    parser.add_argument(
        "--draft",
        metavar="NAME",
        action="append",
        default=[],
        help="what drafts for it: a draft model, or a part trained on the target (EAGLE, DFlash, DSpark, Medusa, "
        "MTP, ...); repeatable",
    )
    parser.add_argument(
        "--draft-vocabulary",
        type=int,
        metavar="N",
        help="leave the draft model's head only N frequent tokens (FR-Spec; default: all)",
    )
    parser.add_argument(
        "--device",
        default="auto",
        help="auto, cpu, cuda, cuda:1, ...; spread: the target over all GPUs, main memory and disk; parallel: over "
        "torchrun's processes, and what auto means under torchrun (default: %(default)s)",
    )
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, float16 (default: %(default)s)")


# Each command imports what it needs when called, so that --help answers at once.


def _load(options: argparse.Namespace, dtype: str | None = None):
    """The pair that the options name, in another dtype if one is given."""
    from specviz.models.loading import load_pair

    several = process_count() > 1
    if several and options.device not in ("auto", "parallel"):
        raise SpecvizError(
            "torchrun started {count} processes, and each picks its own device: leave out --device.",
            "device",
            count=process_count(),
        )
    return load_pair(
        options.target,
        options.draft,
        draft_vocabulary=options.draft_vocabulary,
        device="parallel" if several else options.device,
        dtype=dtype or options.dtype,
    )


def _prepare(pair, compiling: bool = True):
    """Prepares the pair's fast passes and returns the outcome. Reports progress, and which roles got none and why."""
    from specviz.models.preparation import prepare_passes

    if not compiling:
        return prepare_passes(pair, compiling=False)
    done = prepare_passes(pair, lambda fraction, step: _say(f"passes: {step}"))
    for role, error in done.reasons.items():
        _say(f"{'nothing faster' if role in done.ready else 'plain passes'}, {role}: {error}")
    return done


def _run(options: argparse.Namespace) -> int:
    settings = RunSettings.of(vars(options))
    from specviz.decoding.engine import rounds
    from specviz.decoding.record import collect
    from specviz.decoding.request import prepare
    from specviz.drafters.registry import usual

    pair = _load(options)
    if options.passes != "plain":
        _prepare(pair, compiling=options.passes == "auto")
    if options.drafter is None:
        settings = replace(settings, drafter=usual(pair, preparing=False))
    request = prepare(pair, settings)
    if not is_leader():
        # Does its share of the work; the leader reports it.
        for _ in rounds(request):
            pass
        return 0
    colour, counts, done = terminal.wants_colour(sys.stdout), Tally(), []
    print(terminal.harmless(request.prompt.text), end="", flush=True)
    try:
        for one in rounds(request):
            done.append(one)
            counts.add(one)
            print(terminal.paint_round(one, colour), end="", flush=True)
    except KeyboardInterrupt:
        print(" ^C", file=sys.stderr)
    except BrokenPipeError:
        # Nobody reads on, as after `head`; what was asked for in files is written all the same.
        terminal.let_go(sys.stdout)
    run = collect(request, done)
    summary = f"{terminal.summary(counts, run.stop_reason, run.rule)} · {run.pair.passes} passes"
    print(f"\n\n{terminal.legend(colour)}\n{summary}", file=sys.stderr)
    if options.json or options.html:
        from specviz.views.pages import run_page

        _write(options, "json", run.save)  # a name in .html gets the page, too
        _write(options, "html", lambda path: path.write_text(run_page(run), encoding="utf-8"))
    return 0


def _say(line: str) -> None:
    """Prints a line of progress, from the leader only."""
    if is_leader():
        print(line, file=sys.stderr, flush=True)


def _bench(options: argparse.Namespace) -> int:
    commands.check_bench(options)
    pair = _load(options)
    if options.passes == "auto":
        _prepare(pair)
    if options.prompts:
        return _bench_work(options, pair)
    from specviz.bench.benchmark import Benchmark
    from specviz.bench.report import bench_text, save

    temperatures = (0.0, 1.0) if options.temperature is None else (options.temperature,)
    plan = options.only, temperatures, options.preset, options.chat, options.max_new_tokens
    bench = Benchmark.of(pair, options.quick, _say, *plan)

    def text(interrupted: bool) -> str:
        return bench_text(bench.report(interrupted)) if bench.rows else ""

    def write(interrupted: bool) -> None:
        _write(options, "json", functools.partial(save, bench.report(interrupted)))

    with _keeping(text, write):
        bench.run()
    return int(bool(bench.failures.reasons))


def _bench_work(options: argparse.Namespace, pair) -> int:
    """Every way to draft on prompts of one's own."""
    from specviz.bench.report import save
    from specviz.records.words import words
    from specviz.views.terminal import aligned, work_table

    report, courses = commands.work_of(options, pair)

    def text(interrupted: bool) -> str:
        table = aligned(words().spoken(work_table(report.rows))) if report.rows else ""
        return _with_faults(table, report.failed, interrupted)

    def write(interrupted: bool) -> None:
        report.interrupted = interrupted
        _write(options, "json", functools.partial(save, report))

    with _keeping(text, write):
        commands.follow(courses, _say, report.rows, report.failed)
    return int(bool(report.failed))


@contextlib.contextmanager
def _keeping(text: Callable[[bool], str], write: Callable[[bool], None] = lambda interrupted: None) -> Iterator[None]:
    """Prints and writes the measurements, whatever ends the measuring; nothing if there is no text.

    text, write: get True if the measuring was interrupted.
    """
    interrupted = True
    try:
        yield
        interrupted = False
    finally:
        if is_leader() and (said := text(interrupted)):
            try:
                print(said, flush=True)
            finally:
                write(interrupted)


def _with_faults(table: str, failed: Sequence[Mapping[str, str]], interrupted: bool) -> str:
    """A table, the failures with their reasons, and a line if it was interrupted; empty if nothing was measured."""
    faults = [f"✗ {entry['title']}: {entry['reason']}" for entry in failed]
    parts = [table, "\n".join(faults), INTERRUPTED * interrupted] if table or faults else []
    return terminal.harmless("\n\n".join(filter(None, parts)))


def _check(options: argparse.Namespace) -> int:
    """Exit status 1 where something is wrong."""
    pair = _load(options)
    _prepare(pair, compiling=False)
    began, findings = time.perf_counter(), []

    def text(interrupted: bool) -> str:
        return commands.check_summary(findings, time.perf_counter() - began, interrupted) if findings else ""

    def write(interrupted: bool) -> None:
        report = commands.check_report(pair, findings, time.perf_counter() - began, interrupted)
        _write(options, "json", json.dumps(report, indent=1, ensure_ascii=False))

    with _keeping(text, write):
        again = functools.partial(_load, options)
        commands.run_check(pair, again, options.minutes, options.full, _say, findings)
    return int(any(found.state == "wrong" for found in findings))


def _advise(options: argparse.Namespace) -> int:
    commands.check_work(options)
    from specviz.bench.machine import name_of
    from specviz.models.loading import load_pair
    from specviz.records.words import words
    from specviz.views.run_messages import passes_words
    from specviz.views.terminal import advice, as_table

    def load(draft: str):
        other = load_pair(options.target, draft, device=options.device, dtype=options.dtype)
        _prepare(other, compiling=False)
        return other

    pair = _load(options)
    _prepare(pair, compiling=False)
    measured = commands.Measured()

    def text(interrupted: bool) -> str:
        say, info = words(), pair.info()
        known = name_of(pair.device), info.name, passes_words(info.passes), options.temperature
        offers = measured.offers
        table = as_table(advice(offers, *known, measured.rows), say) if offers else ""
        return _with_faults(table, measured.failed, interrupted)

    with _keeping(text):
        commands.measure_advice(options, pair, load, _say, measured)
    return int(bool(measured.failed))


def _static(options: argparse.Namespace) -> int:
    from specviz.views.static_site import write_site

    size = write_site(options.folder)
    print(f"{options.folder}: {size / 1e6:.0f} MB. To look at it: python -m http.server -d {options.folder}")
    return 0


def _compile(options: argparse.Namespace) -> int:
    pair = _load(options)
    done, info = _prepare(pair), pair.info()
    print(f"{info.name} on {info.device} in {info.dtype}, {info.passes} passes: {', '.join(done.ready) or 'all'}")
    return 0 if "target" in done.ready else 1


def _compare_texts(options: argparse.Namespace) -> int:
    """Exit status 1 where one of them is wrong."""
    texts = [_read(path, name) for name, path in (("one", options.one), ("other", options.other))]
    given = [ids if (ids := _token_ids(text)) is not None else text for text in texts]
    from specviz.bench.two_texts import parting
    from specviz.records.words import words
    from specviz.views.terminal import parting_lines

    found = parting(_load(options), *given, options.prompt, options.chat)
    for line in parting_lines(found, (str(options.one), str(options.other)), words()):
        print(terminal.harmless(line))
    return int(found is not None and any(found.wrong))


def _token_ids(text: str) -> list[int] | None:
    """The list, if a text is a JSON list of whole numbers."""
    try:
        ids = json.loads(text)
    except ValueError:
        return None
    return ids if isinstance(ids, list) and ids and all(type(one) is int for one in ids) else None


def _read(path: pathlib.Path, field: str) -> str:
    """The text of a file in any encoding; of the input for ``-``."""
    from specviz.foreign.text import decoded

    try:
        return decoded(sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes())
    except OSError as error:
        raise SpecvizError("The file cannot be read: {reason}.", field, reason=error.strerror) from error


def _metrics(options: argparse.Namespace) -> int:
    from specviz.foreign.metrics import read_metrics
    from specviz.records.words import words
    from specviz.views.served_messages import served_message, served_text

    text = _read(options.metrics, "metrics")
    if options.cost is not None and not 0 <= options.cost < float("inf"):
        raise SpecvizError(
            "c is a ratio of times: it must be a number from 0 up, not {value}.", "cost", value=options.cost
        )
    served = read_metrics(text, options.chains)
    _write(options, "json", served_message(served, words(), options.speedup, options.cost))
    print(served_text(served, options.cost, options.speedup))
    return 0


def _serve(options: argparse.Namespace) -> int:
    from specviz.ui.page import serve

    serve(options.mcp)
    return 0


if __name__ == "__main__":
    quiet = signal.signal(signal.SIGINT, INTERRUPTION)
    status = main()
    signal.signal(signal.SIGINT, quiet)
    sys.exit(status)

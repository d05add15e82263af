"""The command line: `run` a prompt, `bench` the machine, `serve` the page, `compile` a pair beforehand.

Under torchrun all its processes do the same on one target that they share; the first of them prints and writes.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Sequence

from specviz.passes.torchrun import is_leader, process_count, tells
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally
from specviz.records.settings import RunSettings, SamplingParams

#: For the help texts: rules and drafters themselves load torch, and --help should answer at once.
RULE_NAMES = ("token", "block", "tree", "typical")
DRAFTER_NAMES = ("draft_model", "prompt_lookup", "suffix", "lookahead", "early_exit", "medusa", "eagle")
SIZE_NAMES = ("8b", "1b", "tiny")

PASSES = ("plain", "cached", "auto")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; a mistake the user can mend is one sentence and exit status 2."""
    options = _parser().parse_args(arguments)
    try:
        status = options.command(options)
    except SpecvizError as error:
        if tells():
            print(f"specviz: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    if process_count() > 1:
        from specviz.passes.several_devices import leave

        leave()
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m specviz", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="continue a prompt, tokens coloured by where they came from")
    run.add_argument("prompt")
    run.add_argument(
        "--drafter",
        default="draft_model",
        metavar="NAME",
        help=f"{', '.join(DRAFTER_NAMES)}, or plain (default: %(default)s)",
    )
    run.add_argument("--num-draft-tokens", "--gamma", type=int, default=4, metavar="N", help="γ (default: %(default)s)")
    run.add_argument("--branches", type=int, metavar="N", help="draft tokens at each depth, 1 is a chain, more a tree")
    run.add_argument(
        "--confidence", type=float, default=0.0, metavar="Q", help="stop drafting below this probability; 0 is off"
    )
    run.add_argument("--exit-layer", type=int, metavar="E", help="early_exit: leave the target after so many layers")
    run.add_argument(
        "--rule",
        default="auto",
        help=f"how drafts are judged: auto, {', '.join(RULE_NAMES)} (lossy) (default: %(default)s)",
    )
    run.add_argument("--max-new-tokens", type=int, default=128, metavar="N", help="(default: %(default)s)")
    run.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (default: %(default)s)")
    run.add_argument("--top-k", type=int, default=0, help="0 is off")
    run.add_argument("--top-p", type=float, default=1.0, help="1 is off")
    run.add_argument("--min-p", type=float, default=0.0, help="0 is off")
    run.add_argument("--seed", type=int, default=0)
    run.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end the run at this text; repeatable")
    run.add_argument("--chat", action="store_true", help="wrap the prompt in the model's chat template")
    run.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write the whole trace there")
    run.add_argument(
        "--passes",
        choices=PASSES,
        default="cached",
        help="plain: the models' own; cached: compiled ones, if there are any from before; auto: compile them first, "
        "which takes a minute or two (default: %(default)s)",
    )
    _add_pair(run)
    run.set_defaults(command=_run)

    bench = commands.add_parser("bench", help="measure plain decoding, every drafter and transformers in turn")
    bench.add_argument("--json", type=pathlib.Path, metavar="FILE", help="write all rows there")
    bench.add_argument("--quick", action="store_true", help="one story, fewer settings: under a minute on two cores")
    bench.add_argument(
        "--only", default="", metavar="NAME[,NAME]", help=f"these drafters alone, of {', '.join(DRAFTER_NAMES)}"
    )
    bench.add_argument("--preset", default="", metavar="NAME[,NAME]", help="these prompts alone, such as story,repeats")
    bench.add_argument("--temperature", type=float, metavar="T", help="this temperature alone, instead of 0 and 1")
    bench.add_argument(
        "--page", action="store_true", help="also: one run with and without a browser watching (needs playwright)"
    )
    bench.add_argument(
        "--passes",
        choices=("auto", "plain"),
        default="auto",
        help="auto compiles them first, once a machine; plain leaves them to transformers (default: %(default)s)",
    )
    bench.add_argument(
        "--growth", action="store_true", help="also: time and memory by length of text, rounds, γ and visitors"
    )
    bench.add_argument(
        "--figure",
        type=pathlib.Path,
        metavar="FILE",
        help="draw the report: .html, or .png and .svg (needs playwright)",
    )
    bench.add_argument(
        "--size",
        metavar="NAME",
        help=f"instead: random models of a real size, {', '.join(SIZE_NAMES)}, and an oracle for a drafter",
    )
    bench.add_argument("--alpha", type=float, metavar="A", help="--size: how often the oracle is right (default: 0.8)")
    bench.add_argument("--gamma", type=int, metavar="N", help="--size: draft tokens a round (default: 4)")
    _add_pair(bench)
    bench.set_defaults(command=_bench)

    serve = commands.add_parser("serve", help="serve the page, like app.py")
    serve.set_defaults(command=_serve)

    compiling = commands.add_parser("compile", help="compile a pair's passes, for runs and pages to come")
    _add_pair(compiling)
    compiling.set_defaults(command=_compile)
    return parser


def _add_pair(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", metavar="ID", help="folder or Hub id (default: the embedded pair)")
    parser.add_argument("--draft", metavar="ID", help="folder or Hub id of the draft model")
    parser.add_argument("--medusa", metavar="FOLDER", help="trained Medusa heads of this target")
    parser.add_argument("--eagle", metavar="FOLDER", help="a trained EAGLE head of this target")
    parser.add_argument(
        "--device",
        default="auto",
        help="auto, cpu, cuda, cuda:1, ...; spread: the target over all GPUs, main memory and disk; parallel: over the "
        "processes of torchrun, where it is what auto means (default: %(default)s)",
    )
    parser.add_argument("--dtype", default="auto", help="auto, float32, bfloat16, float16 (default: %(default)s)")


# Each command loads what it needs when it is called, so that --help answers at once.


def _load(options: argparse.Namespace):
    from specviz.models.pair import load_pair

    several = process_count() > 1
    if several and options.device not in ("auto", "parallel"):
        raise SpecvizError(
            "torchrun started {count} processes, and each of them takes a device by itself: leave --device out.",
            "device",
            count=process_count(),
        )
    return load_pair(
        options.target,
        options.draft,
        medusa=options.medusa,
        eagle=options.eagle,
        device="parallel" if several else options.device,
        dtype=options.dtype,
    )


def _prepare(pair, compiling: bool = True):
    """Prepares the pair's passes; returns what became of them. Tells how far it is, and what has none and why."""
    from specviz.models.preparation import prepare_passes

    if not compiling:
        return prepare_passes(pair, compiling=False)
    done = prepare_passes(pair, lambda fraction, step: _say(f"passes: {step}"))
    for role, error in done.reasons.items():
        _say(f"plain passes, {role}: {error}")
    return done


def _run(options: argparse.Namespace) -> int:
    settings = RunSettings.of(vars(options))
    from specviz.decoding.engine import rounds
    from specviz.decoding.request import prepare
    from specviz.decoding.run_record import collect
    from specviz.views import terminal

    pair = _load(options)
    if options.passes != "plain":
        _prepare(pair, compiling=options.passes == "auto")
    request = prepare(pair, settings)
    if not is_leader():
        # Its part of the work; the leader tells of it.
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
    run = collect(request, done)
    summary = f"{terminal.summary(counts, run.stop_reason, run.rule)} · {run.pair.passes} passes"
    print(f"\n\n{terminal.legend(colour)}\n{summary}", file=sys.stderr)
    if options.json:
        run.save(options.json)
    return 0


def _say(line: str) -> None:
    """A line of progress, from the one process that speaks."""
    if is_leader():
        print(line, file=sys.stderr, flush=True)


def _bench(options: argparse.Namespace) -> int:
    if options.size is not None:
        return _bench_size(options)
    for name in ("alpha", "gamma"):
        if getattr(options, name) is not None:
            raise SpecvizError("--{name} belongs to --size: name a size to measure.", name, name=name)
    temperatures = (0.0, 1.0) if options.temperature is None else (SamplingParams(options.temperature).temperature,)
    only, presets = (
        [name.strip() for name in names.split(",") if name.strip()] for names in (options.only, options.preset)
    )
    from specviz.bench import benchmark as bench
    from specviz.bench import report as figures
    from specviz.ui.maintenance.picture import check_picture, write_picture

    if options.figure:
        check_picture(options.figure)
    if options.growth and process_count() > 1:
        raise SpecvizError("--growth follows one process: leave it out, or start without torchrun.", "growth")

    bench.planned(options.quick, only, presets)
    pair = _load(options)
    if options.passes == "auto":
        _prepare(pair)
    report = bench.measure(pair, options.quick, _say, only, temperatures, presets)
    if not is_leader():
        return 0
    if options.growth:
        from specviz.bench.growth import measure_growth
        from specviz.ui.deployment import Deployment
        from specviz.ui.maintenance.visitors import measure_visitors

        report.growth = measure_growth(pair, _say)
        report.growth.visitors = measure_visitors(pair, Deployment.from_environment(), _say)
    if options.page:
        from specviz.ui.deployment import Deployment
        from specviz.ui.maintenance.page_cost import measure_page

        report.page = measure_page(Deployment.from_environment(), _say)
    print(figures.table(report))
    if options.json:
        figures.save(report, options.json)
    if options.figure:
        from specviz.views.bench_figure import bench_figure

        write_picture(bench_figure(figures.as_plain(report)), options.figure)
    return 0


def _bench_size(options: argparse.Namespace) -> int:
    for name in ("only", "preset", "page", "target", "draft", "medusa", "eagle"):
        if getattr(options, name):
            raise SpecvizError("--size makes models and runs of its own: leave --{name} out.", name, name=name)
    from specviz.bench import size_benchmark as size_bench

    report = size_bench.measure(
        options.size,
        0.8 if options.alpha is None else options.alpha,
        4 if options.gamma is None else options.gamma,
        device=options.device,
        dtype=options.dtype,
        temperature=options.temperature or 0.0,
        quick=options.quick,
        say=_say,
    )
    print(size_bench.table(report))
    if options.json:
        size_bench.save(report, options.json)
    return 0


def _compile(options: argparse.Namespace) -> int:
    pair = _load(options)
    done, info = _prepare(pair), pair.info()
    if is_leader():
        print(f"{info.name} on {info.device} in {info.dtype}, {info.passes} passes: {', '.join(done.ready) or 'all'}")
    return 0 if "target" in done.ready else 1


def _serve(options: argparse.Namespace) -> int:
    from specviz.ui.page import serve

    serve()
    return 0


if __name__ == "__main__":
    sys.exit(main())

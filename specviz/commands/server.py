"""`server`: asks an inference server that runs elsewhere: what it is, its rounds, its speed, whether it is lossless."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from specviz.commands.output import progress, write_all
from specviz.foreign.requests import ServedRequest
from specviz.records.errors import SpecvizError
from specviz.records.metrics import Tally
from specviz.records.prompts import PRESETS, Preset, read_prompts, require_readable, text_of
from specviz.records.settings import RunSettings
from specviz.servers.answers import Ask
from specviz.servers.connection import KEY
from specviz.servers.counters import counted_between
from specviz.servers.engine import About
from specviz.servers.lossless import ANSWERS, Lossless, require_testable, test_samples
from specviz.servers.pace import Speed, most_of
from specviz.servers.server import Server, Watch
from specviz.views import server_text, terminal

ABOUT = "an inference server that is running: its rounds, its speed, and whether its samples are its model's"

SCHEMA = "specviz.server/1"

PARTS = ("rounds", "speed", "lossless")

#: New tokens of the answer whose rounds are shown.
TOKENS = 128


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("server", metavar="URL", help=f"its root, such as http://localhost:8080; its key in the variable {KEY}")
    add("--model", dest="server_model", metavar="NAME", help="which of its models (default: the first)")
    add("--target", metavar="FOLDER", help="the model that it serves, loaded here: what its samples are judged by")
    add("--plain", metavar="URL", help="a second server of the same model without speculation, to compare with")
    add("--only", choices=PARTS, action="append", help="only this part; may be repeated (default: all)")
    add("--samples", type=int, metavar="N", help="answers that are drawn (default: as many as a minute allows)")
    add("--temperature", type=float, default=1.0, help="of the samples (default: %(default)s)")
    add("--defaults", action="store_true", help="leave the server's own samplers on, such as top-k")
    add("--prompt", default=PRESETS[0].prompt, help="what is continued (default: a story's beginning)")
    add("--prompts", type=pathlib.Path, metavar="FILE", help="measure speed on these: one per line, or JSON Lines")
    add("--max-new-tokens", type=int, default=TOKENS, metavar="N", help="of the shown answer (default: %(default)s)")
    add("--json", type=pathlib.Path, metavar="FILE", help="write the figures to this file")
    add("--html", type=pathlib.Path, metavar="FILE", help="write a page that shows the rounds to this file")


@dataclass
class Found:
    """What is known so far."""

    about: About
    watch: Watch | None = None
    speed: Speed | None = None
    lossless: Lossless | None = None

    def to_dict(self) -> dict[str, Any]:
        """The file's values; what is not known is None."""
        about, watch = self.about, self.watch
        counts = watch.counts if watch else Tally()
        rounds = watch.run().to_dict() if watch and watch.rounds else None
        return {
            "schema": SCHEMA,
            "engine": about.engine,
            "version": about.version,
            "model": about.model,
            "url": about.url,
            "drafter": watch.drafter if watch else about.drafter,
            "num_draft_tokens": self._depth(rounds),
            "tokens_per_pass": counts.acceptance_length,
            "accepted_per_position": [accepted / counts.rounds for accepted in counts.accepted_at] or None,
            "rounds": rounds,
            "speed": None if self.speed is None else asdict(self.speed),
            "lossless": None if self.lossless is None else self.lossless.to_dict(),
        }

    def _depth(self, rounds: dict[str, Any] | None) -> int | None:
        """γ. Before its first draft a server may not say it; the rounds do, where lengths are seen."""
        if self.about.depth is not None or self.watch is None or rounds is None:
            return self.about.depth
        return rounds["num_draft_tokens"] if self.watch.together.lengths_known else None


def main(options: argparse.Namespace) -> int:
    """Exit status 1 if the samples are not the model's."""
    parts = options.only or PARTS
    prompts = _checked(options, parts)
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(contextlib.closing(_server(options.server, options.server_model)))
        second = opened.enter_context(contextlib.closing(_second(options.plain))) if options.plain else None
        found, before = Found(server.about()), server.engine.scrape()
        _print(server_text.about_lines(found.about))
        try:
            if "rounds" in parts:
                _watch(options, server, found)
            if "speed" in parts:
                _speed(prompts, server, second, found)
            if "lossless" in parts:
                _lossless(options, server, second, found)
            counted = _counted(server, before)
            if counted and any((counted.passes, counted.drafted, counted.accepted)):  # else nothing was drafted
                print()
                _print(server_text.doctor_lines(counted, found.speed))
        finally:
            write_all(
                options, {"json": json.dumps(found.to_dict(), ensure_ascii=False, default=str)} | _page(options, found)
            )
    return int(found.lossless is not None and found.lossless.verdict == "differs")


def _checked(options: argparse.Namespace, parts: Sequence[str]) -> Sequence[Preset]:
    """The prompts that speed is measured on. Raises SpecvizError for what cannot be asked of any server, before one is
    asked."""
    require_readable(options.prompt)
    RunSettings(options.prompt, max_new_tokens=options.max_new_tokens)
    prompts = PRESETS if options.prompts is None else read_prompts(text_of(options.prompts))
    if "speed" in parts:
        most_of(prompts)
    if "lossless" in parts:
        try:
            require_testable(ANSWERS if options.samples is None else options.samples, options.temperature)
        except SpecvizError as error:
            raise (error.at("samples") if error.field == "answers" else error) from error
        if options.target is not None:
            from specviz.models.sources import find_model

            find_model(options.target, "target", None, None)  # it is loaded only after minutes of measuring
    return prompts


def _counted(server: Server, before: str | None) -> ServedRequest | None:
    """What the server counted since an earlier look. All else is said by now: a server that is gone is no error."""
    try:
        return counted_between(before, server.engine.scrape())
    except SpecvizError as error:
        progress(f"The server's own counters are not known: {error}")
        return None


def _server(url: str, model: str | None = None) -> Server:
    return Server(url, os.environ.get(KEY), model)


def _second(url: str) -> Server:
    """The second server, which must answer. Raises SpecvizError (field ``plain``)."""
    try:
        server = _server(url)
        server.about()
    except SpecvizError as error:
        raise error.at("plain") from error
    return server


def _watch(options: argparse.Namespace, server: Server, found: Found) -> None:
    """Prints an answer as it comes, and how it was made."""
    colour = terminal.wants_colour(sys.stdout)
    found.watch = server.watch(Ask(options.prompt, options.max_new_tokens, temperature=0.0))
    print(f"\n{terminal.harmless(options.prompt)}", end="", flush=True)
    for round_ in found.watch:
        print(terminal.paint_round(round_, colour), end="", flush=True)
    if not found.watch.rounds:
        print(terminal.harmless(found.watch.answer.text))
        if found.watch.answer.text:
            progress(f"{found.about.engine} does not say which tokens it makes: its rounds are not known.")
        else:
            progress("The answer is empty: the model ends the text at once. Try another --prompt.")
        return
    print(f"\n\n{terminal.legend(colour)}")
    _print(server_text.rounds_lines(found.watch))


def _page(options: argparse.Namespace, found: Found) -> dict[str, str]:
    """The page of the rounds, by its option, if it is wanted and any are known."""
    if not options.html or found.watch is None or not found.watch.rounds:
        return {}
    from specviz.views.pages import run_page

    return {"html": run_page(found.watch.run())}


def _speed(prompts: Sequence[Preset], server: Server, second: Server | None, found: Found) -> None:
    from specviz.servers.speed import measure_speed

    most = most_of(prompts)
    progress(f"\nspeed: at most {most.requests} requests, {most.tokens} tokens, {most.seconds:.0f} seconds")
    try:
        for found.speed in measure_speed(server, plain=second, prompts=prompts):
            pass
    finally:
        if found.speed is not None:
            _print(server_text.speed_lines(found.speed))


def _lossless(options: argparse.Namespace, server: Server, second: Server | None, found: Found) -> None:
    from specviz.models.loading import load_pair
    from specviz.servers.references import OwnReference, SecondServer, TargetReference

    if options.target is not None:
        reference: Any = TargetReference(load_pair(target=options.target, device="cpu", dtype="float32"))
    else:
        reference = SecondServer(second) if second else OwnReference(server.engine)
    settings = {"prompt": options.prompt, "temperature": options.temperature, "neutral": not options.defaults}
    if options.samples is not None:
        settings["answers"] = options.samples
    try:
        for found.lossless in test_samples(server, reference, **settings):
            pass
    finally:
        if found.lossless is not None:
            _print(server_text.lossless_lines(found.lossless))


def _print(lines: Iterator[str]) -> None:
    for line in lines:
        print(line, flush=True)

"""The Server tab: an inference server that runs elsewhere, watched round by round; or its own numbers, pasted.

No model is needed for that, and so nothing here waits in the line for one.
"""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import gradio as gr

from specviz.records.errors import SpecvizError
from specviz.records.prompts import PRESETS, require_readable
from specviz.records.runs import Round
from specviz.records.words import Words
from specviz.servers.answers import Ask
from specviz.servers.engines import About
from specviz.servers.lossless import Lossless, test_samples
from specviz.servers.pace import Speed
from specviz.servers.references import OwnReference, SecondServer, TargetReference
from specviz.servers.server import Server, Watch
from specviz.servers.speed import measure_speed
from specviz.ui.components import QUEUED, server_view
from specviz.ui.desk import Desk, Tab
from specviz.ui.device import PairName
from specviz.ui.downloads import SUFFIXES, run_files
from specviz.ui.line import Stops, Visit
from specviz.ui.orders import read_form
from specviz.ui.runner import Runner, beside_the_line, closing
from specviz.ui.runs import Visitors
from specviz.views.run_messages import message
from specviz.views.server_messages import (
    ShownWatch,
    about_message,
    lossless_limits,
    lossless_message,
    problem,
    speed_limits,
    speed_message,
)

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair

#: How many servers are asked at a time, for all visitors: each takes a thread.
MOST_ASKED = 12
_asked = threading.BoundedSemaphore(MOST_ASKED)

#: New tokens that the form begins with.
NEW_TOKENS = 128


@dataclass(frozen=True)
class Form:
    """What a visitor enters."""

    server: str
    server_key: str = field(repr=False)  # no traceback shows it
    server_model: str
    prompt: str
    max_new_tokens: float
    temperature: float
    neutral: bool
    plain: str  # a second server
    reference: str  # by which samples are judged: ``target``, ``server``, ``plain``

    @property
    def sampled(self) -> dict[str, Any]:
        """What the samples are of."""
        return {"prompt": self.prompt, "temperature": self.temperature, "neutral": self.neutral}

    def ask(self, most_tokens: int) -> Ask:
        """Raises SpecvizError with the field's name."""
        named = ("prompt", "max_new_tokens", "temperature")
        settings = read_form({name: getattr(self, name) for name in named})
        require_readable(self.prompt)
        if settings.max_new_tokens > most_tokens:
            raise SpecvizError("Enter a whole number from 1 to {most}.", "max_new_tokens", most=most_tokens)
        return Ask(str(settings.prompt), settings.max_new_tokens, settings.sampling.temperature, neutral=self.neutral)


def create_server_tab(desk: Desk) -> Tab:
    ask_servers(desk.runner, desk.visitors, desk.say)
    return Tab()


def ask_servers(runner: Runner, visitors: Visitors, say: Words) -> None:
    """Lays out the form with its cards, and wires it. It needs no desk: pages without models have it as well."""
    asking = Asking(runner, visitors, say)

    def stop_asking(wanted: dict[str, Any]) -> None:
        asking.stops.press(str(wanted["visit"]))

    functions = {"missing_rounds": asking.missing_rounds, "run_file": asking.run_file, "stop_asking": stop_asking}
    view = server_view(say, asking.offer, functions)

    def on_asked(wanted: gr.EventData, request: gr.Request) -> Iterator[str]:
        visit = Visit(request.session_hash, asking.stops.flag(str(wanted.visit)))
        yield from asking.answers(wanted.what, Form(**wanted.form), visit)

    # The element asks one thing at a time, and is told that it is over before Gradio has heard of it.
    view.submit(on_asked, None, view, trigger_mode="multiple", **QUEUED)


@dataclass
class Asking:
    """What visitors of a page in one language ask of servers."""

    runner: Runner
    visitors: Visitors
    say: Words
    stops: Stops = field(default_factory=Stops)

    @property
    def offer(self) -> dict[str, Any]:
        """What the form begins with."""
        servers = self.runner.deployment.servers
        most = self.runner.deployment.max_new_tokens
        fields = {"prompt": PRESETS[0].prompt, "max_new_tokens": min(NEW_TOKENS, most), "temperature": 1.0}
        limits = {"speed": self.say.translated(speed_limits()), "lossless": self.say.translated(lossless_limits())}
        references = ["server", "plain"] if self.runner.deployment.without_models else ["target", "server", "plain"]
        return {"servers": servers, "most_tokens": most, "fields": fields, "limits": limits, "references": references}

    def answers(self, what: str, form: Form, visit: Visit) -> Iterator[str]:
        """The messages to what is asked, see `_ASKED`."""
        told = begun = message(what, phase="running")
        yield begun
        try:
            for told in _ASKED[what](self, form, visit):
                yield told
        except SpecvizError as error:
            yield message(what, phase="failed", problem=problem(error, self.say))
            return
        if told is begun:
            yield message(what, phase="stopped")

    @contextlib.contextmanager
    def server(self, form: Form) -> Iterator[Server]:
        """The server, which is left however it goes: what still waits for it ends with its next word."""
        listed = self.runner.deployment.servers
        with contextlib.closing(Server(form.server, form.server_key, form.server_model, listed)) as server:
            yield server

    @contextlib.contextmanager
    def second(self, form: Form) -> Iterator[Server | None]:
        """The second server, if there is one; the same key is sent. Raises SpecvizError (field ``plain``)."""
        if not form.plain.strip() and form.reference != "plain":
            yield None
            return
        try:
            plain = Server(form.plain, form.server_key, None, self.runner.deployment.servers)
        except SpecvizError as error:
            raise error.at("plain") from error
        with contextlib.closing(plain):
            yield plain

    def about(self, form: Form, visit: Visit) -> Iterator[str]:
        with self.server(form) as server:
            for batch in _until(visit.halt, lambda: iter([server.about()])):
                yield from map(about_message, batch)

    def watch(self, form: Form, visit: Visit) -> Iterator[str]:
        ask, shown = form.ask(self.runner.deployment.max_new_tokens), None
        with self.server(form) as server:
            try:
                for batch in _until(visit.halt, partial(_watched, server, ask)):
                    if shown is None and batch:
                        shown = ShownWatch(uuid.uuid4().hex, batch.pop(0), self.say)
                        self.visitors.watches[shown.key] = shown
                    if shown is not None:
                        yield shown.message(batch)
            except SpecvizError as error:
                if shown is None:
                    raise
                yield shown.message([], "failed", error)
                return
        if shown is not None:
            yield shown.message([], "stopped" if visit.halt.is_set() else "finished")

    def speed(self, form: Form, visit: Visit) -> Iterator[str]:
        known: list[Any] = []  # what runs there, and the latest of what was measured
        with self.server(form) as server, self.second(form) as plain:
            for batch in _until(visit.halt, partial(_measured, server, plain)):
                known = [*known[:1], *batch]
                if batch and len(known) > 1:
                    yield speed_message(known[0], known[-1], self.say, "running")
        if len(known) > 1:
            yield speed_message(known[0], known[-1], self.say, "stopped" if visit.halt.is_set() else "finished")

    def lossless(self, form: Form, visit: Visit) -> Iterator[str]:
        """By the target that is loaded here samples are judged in turn with other work on models."""
        form.ask(self.runner.deployment.max_new_tokens)
        if form.reference != "target":
            with self.server(form) as server, self.second(form) as plain:
                yield from self._judged(_until(visit.halt, partial(_judged_elsewhere, server, plain, form)), visit)
            return
        line = self.runner.line
        with line.joined("server") as turn:
            for text in line.waiting(turn, visit.halt, self.say):
                yield message("lossless", phase="running", status=text)
            if visit.halt.is_set():
                yield message("lossless", phase="stopped", status=self.say("line.left"))
                return
            name = self.visitors.pairs.get(visit.session) or PairName()
            batches = self.runner.batches(name, judged_by_target, form, self.runner.deployment.servers)
            yield from self._judged(closing(batches, visit.halt), visit)

    def _judged(self, batches: Iterator[list[Lossless]], visit: Visit) -> Iterator[str]:
        known = None
        for batch in batches:
            if batch:
                known = batch[-1]
                yield lossless_message(known, self.say, "finished" if known.over else "running")
        if known is not None and not known.over:
            yield lossless_message(known, self.say, "stopped")

    def missing_rounds(self, wanted: dict[str, Any]) -> list[str]:
        """As `LiveRuns.missing_rounds`."""
        shown, first = self.visitors.watches.get(str(wanted.get("run"))), wanted.get("first")
        return shown.missing_rounds(first) if shown and isinstance(first, int) and first >= 0 else []

    def run_file(self, wanted: dict[str, Any]) -> list[str] | None:
        """Name and text of one of the files of a run that was watched; None once it is no longer kept."""
        shown = self.visitors.watches.get(str(wanted.get("run")))
        if shown is None or wanted.get("suffix") not in SUFFIXES:
            return None
        files = run_files(shown.run(), self.say)  # which are there as long as this is
        path = files.paths[SUFFIXES.index(wanted["suffix"])]
        return [path.name, path.read_text(encoding="utf-8")]


_ASKED: dict[str, Callable[[Asking, Form, Visit], Iterator[str]]] = {
    "about": Asking.about,
    "watch": Asking.watch,
    "speed": Asking.speed,
    "lossless": Asking.lossless,
}


def _watched(server: Server, ask: Ask) -> Iterator[Watch | Round]:
    """The watch, then its rounds."""
    watch = server.watch(ask)
    yield watch
    yield from watch


def _measured(server: Server, plain: Server | None) -> Iterator[About | Speed]:
    """What runs there, then its speed again and again."""
    yield server.about()
    if plain is not None:
        try:
            plain.about()
        except SpecvizError as error:
            raise error.at("plain") from error
    yield from measure_speed(server, plain=plain)


def _judged_elsewhere(server: Server, plain: Server | None, form: Form) -> Iterator[Lossless]:
    assert plain or form.reference == "server", "a second server was asked for"
    reference = SecondServer(plain) if plain and form.reference == "plain" else OwnReference(server.engine)
    return test_samples(server, reference, **form.sampled)


def judged_by_target(pair: ModelPair, form: Form, listed: Sequence[str] | None) -> Iterator[Lossless]:
    """A server's samples, judged by the target of a pair."""
    with contextlib.closing(Server(form.server, form.server_key, form.server_model, listed)) as server:
        yield from test_samples(server, TargetReference(pair), **form.sampled)


def _until(halt: threading.Event, work: Callable[[], Iterator[Any]]) -> Iterator[list[Any]]:
    """What asking a server comes to, in batches that may be empty, until `halt` is set."""
    with contextlib.closing(beside_the_line(partial(_among_few, work))) as batches:
        for batch in batches:
            yield batch
            if halt.is_set():
                return


def _among_few(work: Callable[[], Iterator[Any]]) -> Iterator[Any]:
    if not _asked.acquire(blocking=False):
        raise SpecvizError("{count} servers are being asked already: try again in a moment.", count=MOST_ASKED)
    try:
        yield from work()
    finally:
        _asked.release()

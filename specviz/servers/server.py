"""`Server`, the door: what runs at an address, its rounds, its speed, and whether its samples are right."""

from __future__ import annotations

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from specviz.foreign.requests import ServedRequest
from specviz.records.errors import SpecvizError, quoted, require_text
from specviz.records.metrics import Tally, tally
from specviz.records.prompts import require_readable, token_ids
from specviz.records.runs import Round, Run
from specviz.servers.address import address_of
from specviz.servers.answers import Answer, Ask
from specviz.servers.connection import Connection
from specviz.servers.counters import counted_between, depth_of
from specviz.servers.engine import About, Engine
from specviz.servers.engines import engine_at
from specviz.servers.lossless import Lossless, test_samples
from specviz.servers.pace import Speed
from specviz.servers.references import OwnReference, Reference, SecondServer, TargetReference
from specviz.servers.rounds import Rounds, run_of
from specviz.servers.speed import measure_speed

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair


@dataclass
class Watch:
    """An answer that is being watched: iterating yields its rounds as they become known. It may be left early; closing
    the iterator ends the request."""

    engine: Engine
    ask: Ask
    about: About
    answer: Answer = field(init=False)
    rounds: list[Round] = field(default_factory=list)
    together: Rounds = field(init=False)  # how the rounds came about
    counted: ServedRequest | None = None  # what the server's own counters grew by, once it is over

    def __post_init__(self) -> None:
        self.answer, self.together = Answer(self.ask), Rounds(self.about.depth)

    def __iter__(self) -> Generator[Round, None, None]:
        before = self.engine.scrape()
        for piece in self.engine.stream(self.ask):
            self.answer.pieces.append(piece)
            for round_ in self.together.add(piece):
                self.rounds.append(round_.shown(len(self.rounds), self.ask.temperature == 0))
                yield self.rounds[-1]
        self.counted = counted_between(before, self.engine.scrape())

    @property
    def counts(self) -> Tally:
        """Of the rounds that verified a draft, as servers count; of all rounds where nobody knows which of them did."""
        known = self.together.lengths_known
        return tally(round_ for round_ in self.rounds if round_.drafted or not known)

    @property
    def drafter(self) -> str | None:
        """In the engine's own words, which some use only in an answer."""
        return self.engine.drafter_in(self.answer) or self.about.drafter

    def run(self) -> Run:
        """The rounds so far as a run. Raises SpecvizError where the engine does not say which tokens it makes."""
        if self.answer.text and not self.rounds:
            raise SpecvizError(
                "{engine} does not say which tokens it makes, so its rounds cannot be known.",
                "server",
                engine=self.about.engine,
            )
        engine = f"{self.about.engine} {self.about.version or ''}".rstrip()
        return run_of(self.rounds, self.ask, engine, self.drafter, self.answer.end)


class Server:
    """An inference server that runs elsewhere.

    url: its root. key: for servers that want one; it stays in this object. model: where it has several. listed: see
    `specviz.servers.address.address_of`. Every method raises SpecvizError (field ``server``, ``server_key`` or
    ``server_model``) where the server cannot be reached or refuses.
    """

    def __init__(
        self, url: str, key: str | None = None, model: str | None = None, listed: Collection[str] | None = None
    ):
        for name, value in (("key", key), ("model", model)):
            if value is not None:
                require_text(name, value, f"server_{name}")
        self.address = address_of(url, listed)
        self.connection = Connection(self.address, key)
        self._model = model or None

    @cached_property
    def engine(self) -> Engine:
        return engine_at(self.connection, self._model)

    def about(self) -> About:
        """What runs there, as far as it says; asked anew each time."""
        about = self.engine.about()
        return about if about.depth is not None else replace(about, depth=depth_of(self.engine.scrape()))

    def watch(self, ask: Ask) -> Watch:
        """An answer, round by round."""
        _check(ask)
        return Watch(self.engine, ask, self.about())

    def answer(self, ask: Ask) -> Answer:
        """An answer as a whole. Safe to call from several threads at once."""
        _check(ask)
        return self.engine.answer(ask)

    def run(
        self,
        prompt: str | Sequence[int],
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        seed: int = 0,
        **ask: Any,
    ) -> Run:
        """The rounds of one answer, as far as the engine lets them be known. ask: further fields of `Ask`."""
        ids = prompt if isinstance(prompt, str) else token_ids(prompt)
        watch = self.watch(Ask(ids, max_new_tokens, temperature, seed, **ask))
        for _ in watch:
            pass
        return watch.run()

    def speed(self, **options: Any) -> Speed:
        """How fast it is, once all is measured. options: those of `measure_speed`."""
        *_, speed = measure_speed(self, **options)
        return speed

    def lossless(self, reference: ModelPair | Reference | SecondServer | None = None, **options: Any) -> Lossless:
        """Whether its samples are its model's, once all are drawn.

        reference: a pair, by whose target they are judged; or see `specviz.servers.references`; None: the server's own
        log probabilities. options: those of `test_samples`.
        """
        *_, known = test_samples(self, self._reference(reference), **options)
        return known

    def _reference(self, given: ModelPair | Reference | SecondServer | None) -> Reference | SecondServer:
        if given is None:
            return OwnReference(self.engine)
        if isinstance(given, SecondServer):
            return given
        from specviz.models.pair import ModelPair  # without models, a server is asked where there is no torch

        if isinstance(given, ModelPair):
            return TargetReference(given)
        if not hasattr(given, "rows"):
            raise SpecvizError(
                "The samples are judged by a pair of specviz.load_pair(…), not by {value}.",
                "reference",
                value=quoted(given),
            )
        return given

    def close(self) -> None:
        self.connection.close()


def _check(ask: Ask) -> None:
    """Raises SpecvizError (field ``prompt``) for what is no request, or for one with a text that nothing continues."""
    if not isinstance(ask, Ask):
        raise SpecvizError("A request is an Ask of specviz.servers.answers, not {value}.", "prompt", value=quoted(ask))
    if isinstance(ask.prompt, str):
        require_readable(ask.prompt)

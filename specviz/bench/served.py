"""Servers as contestants: which ones, what runs there, and one answer of theirs. Loads no torch."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from specviz.records.errors import SpecvizError
from specviz.records.runs import Prompt
from specviz.records.settings import PLAIN, RunSettings
from specviz.servers.address import address_of
from specviz.servers.answers import Ask
from specviz.servers.connection import KEY
from specviz.servers.server import Server
from specviz.servers.turns import Turn, Way, one_answer

#: The most servers in one contest, which all take turns with each other.
MOST = 4

#: What stands for an engine or a drafter that is not known.
SERVED = "server"

#: The text, and its length, by which a server is known before the contest.
LOOK = Ask("Once upon a time", 16)


@dataclass(frozen=True, slots=True)
class Served:
    """A server as a contestant: its address and, once it was looked at, what runs there."""

    url: str
    listed: tuple[str, ...] | None = None  # see `address_of`
    keyed: bool = True  # whether it is sent the key in this program's environment
    engine: str = SERVED
    version: str | None = None
    model: str | None = None
    drafter: str | None = None  # in the engine's own words; "none" where it says that there is none
    depth: int | None = None  # γ
    same_tokens: bool = False  # whether its token ids stand for the same texts as the pair's, as far as was seen

    @property
    def host(self) -> str:
        return address_of(self.url).url.netloc.decode("ascii")

    @property
    def mode(self) -> str:
        """`PLAIN`, or the drafter's name, or `SERVED`."""
        return PLAIN if self.drafter == "none" else self.drafter or SERVED

    @property
    def title(self) -> str:
        return " ".join(filter(None, (self.engine, self.version, self.host, self.drafter and self.mode)))


def servers_named(text: str, listed: Sequence[str] | None = None, keyed: bool = True) -> list[Served]:
    """The servers at these addresses, separated by commas; nobody is asked yet. listed: as for `address_of`. keyed:
    False where the key is not theirs who typed the addresses.

    Raises SpecvizError (field ``server``) for an address that is none or is not allowed, or for too many.
    """
    places = list(
        dict.fromkeys(address_of(place, listed).shown for place in filter(None, map(str.strip, text.split(","))))
    )
    if len(places) > MOST:
        raise SpecvizError("At most {most} servers can be compared at once.", "server", most=MOST)
    allowed = None if listed is None else tuple(listed)
    return [Served(place, allowed, keyed) for place in places]


def looked_at(served: Served, decode: Callable[[Sequence[int]], str]) -> Served:
    """The same with what runs there. One that does not answer stays as it is, and says why when its turn comes.

    decode: the text of token ids by the pair's tokenizer.
    """
    door = _opened(served)
    try:
        about, turn = door.about(), one_answer(Way(door.engine), LOOK)
    except SpecvizError:
        return served
    finally:
        door.close()
    (answer,) = turn.answers
    ids = [id for id in answer.ids if id is not None]
    return replace(
        served,
        engine=about.engine,
        version=about.version,
        model=about.model,
        drafter=door.engine.drafter_in(answer) or about.drafter,
        depth=about.depth or None,
        same_tokens=bool(ids) and decode(ids).strip() == answer.text.strip(),
    )


def answer_of(served: Served, prompt: Prompt, settings: RunSettings) -> Turn:
    """Its answer to a prompt, by token ids where it takes them. Raises SpecvizError where it fails, or cannot be asked
    for these settings."""
    sampling, door = settings.sampling, _door(served)
    if sampling.top_k or sampling.top_p < 1 or sampling.min_p:
        raise SpecvizError("Servers are compared without top-k, top-p and min-p: switch them off.", "server")
    if settings.grammar:
        raise SpecvizError("Servers are compared without a grammar: leave the grammar out.", "server")
    try:
        text = prompt.ids if served.same_tokens and door.engine.takes_ids else prompt.text
        return one_answer(Way(door.engine), Ask(text, settings.max_new_tokens, sampling.temperature, settings.seed))
    except SpecvizError as error:
        if error.field != "server_key" or served.keyed:
            raise
        raise SpecvizError(
            "{server} wants a key. This page sends its key (SPECVIZ_SERVER_KEY) only to servers that its owner lists "
            "(SPECVIZ_SERVERS).",
            "server",
            server=served.url,
        ) from error


def _opened(served: Served) -> Server:
    return Server(served.url, os.environ.get(KEY) if served.keyed else None, listed=served.listed)


@functools.lru_cache(2 * MOST)
def _door(served: Served) -> Server:
    return _opened(served)

"""What fails while a pair is checked or measured is one line with its reason, and the rest goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from specviz.bench.contestants import PLAIN, Contestant, Say
from specviz.bench.turns import Emits, Lane
from specviz.records.errors import SpecvizError, first_line
from specviz.records.words import Sentence


def reason_of(error: Exception) -> SpecvizError | Sentence:
    """What was written for users as it is; of anything else its kind and its first line."""
    if isinstance(error, SpecvizError):
        return error
    return Sentence("it failed with {kind}: {reason}", kind=type(error).__name__, reason=first_line(error))


@dataclass
class Failures:
    """What failed, by title, and why. Who failed is not measured once more."""

    say: Say = lambda line: None  # hears of each
    reasons: dict[str, SpecvizError | Sentence] = field(default_factory=dict)

    def add(self, title: str, error: Exception) -> None:
        """Raises the error where it is plain decoding's: there is nothing to compare with then."""
        if title == PLAIN:
            raise error
        self.reasons[title] = reason_of(error)
        self.say(f"✗ {title}: {self.reasons[title]}")

    @contextlib.contextmanager
    def of(self, title: str) -> Iterator[None]:
        """Within it, what fails is kept here."""
        try:
            yield
        except Exception as error:
            self.add(title, error)

    def caught(self, contestant: Contestant, make: Callable[[], Lane]) -> Lane:
        """The contestant's lane; what fails in making it or in running it ends its own run and none of the others."""
        title, lane = contestant.title, Lane(lambda repeat: iter(()))
        with self.of(title):
            lane = make()

        def start(repeat: int) -> Iterator[Emits]:
            with self.of(title):
                if title not in self.reasons:
                    yield from lane.start(repeat)

        return replace(lane, start=start)

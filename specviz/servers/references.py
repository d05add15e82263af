"""What a server's samples are judged by: the target loaded here, or the server's own log probabilities of its answers.

A reference says of every token of an answer from which distribution it should come, given the answer so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy

from specviz.records.errors import SpecvizError, quoted
from specviz.records.settings import SamplingParams
from specviz.servers.engines import Engine
from specviz.theory.sample_tests import Rows

if TYPE_CHECKING:
    from specviz.models.pair import ModelPair

#: Probabilities that are held at once.
MOST_VALUES = 8_000_000

#: What rounding leaves at least of the symbols that are not listed.
LEAST_REST = 1e-9


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer's tokens. ended: an end token follows them, which counts as one of them."""

    ids: tuple[int, ...]
    ended: bool = False


class Reference(Protocol):
    name: str  # ``target`` or ``server``

    def encode(self, prompt: str) -> tuple[int, ...] | None:
        """The prompt's tokens; None where only the server knows them."""

    def text(self, id: int) -> str:
        """A token as it is named in a sentence."""

    def rows(self, prompt: tuple[int, ...], samples: Sequence[Sample], sampling: SamplingParams) -> Iterator[Rows]:
        """The distributions of all tokens of these answers, in parts."""


class TargetReference:
    """The target of a pair that is loaded here. All of its end tokens count as one symbol: an engine does not say which
    of them ended an answer."""

    name = "target"

    def __init__(self, pair: ModelPair):
        self.pair = pair
        self.ends = sorted(pair.eos_ids)

    def encode(self, prompt: str) -> tuple[int, ...]:
        return self.pair.encode(prompt).ids

    def text(self, id: int) -> str:
        return quoted(self.pair.texts.chip(id))

    def rows(self, prompt: tuple[int, ...], samples: Sequence[Sample], sampling: SamplingParams) -> Iterator[Rows]:
        """Raises SpecvizError (field ``target``) for ids that the target does not have: it is another model."""
        known = [self._with_end(sample) for sample in samples]
        most = max((id for ids in known for id in ids), default=0)
        if most >= self.pair.vocab_size:
            raise SpecvizError(
                "The server's token {id} is beyond the vocabulary of {target}: it serves another model.",
                "target",
                id=most,
                target=self.pair.target_name,
            )
        longest = max(map(len, known), default=1) or 1
        count = max(1, MOST_VALUES // (longest * self.pair.vocab_size))
        for start in range(0, len(known), count):
            yield self._part(prompt, [ids for ids in known[start : start + count] if ids], sampling)

    def _with_end(self, sample: Sample) -> tuple[int, ...]:
        """Its tokens, the end among them as the first end token."""
        ids = tuple(self.ends[0] if id in self.pair.eos_ids else id for id in sample.ids)
        return (*ids, self.ends[0]) if sample.ended and self.ends and ids[-1:] != (self.ends[0],) else ids

    def _part(self, prompt: tuple[int, ...], samples: Sequence[tuple[int, ...]], sampling: SamplingParams) -> Rows:
        import torch

        from specviz.rules.sampling import Warper

        longest = max(map(len, samples))
        read = torch.tensor([[*prompt, *ids, *[0] * (longest - len(ids))] for ids in samples], device=self.pair.device)
        with torch.inference_mode():
            # A row's last token is judged by the row before; what was filled in comes after all that is judged.
            output = self.pair.target(read[:, :-1], logits_to_keep=longest, use_cache=False)
            logits = output.logits[..., : self.pair.vocab_size]
            judged = torch.cat([row[: len(ids)] for row, ids in zip(logits, samples)])
            probs = Warper(sampling).probabilities(judged).double().cpu()
            if self.ends:
                probs[:, self.ends[0]] = probs[:, self.ends].sum(-1)
                probs[:, self.ends[1:]] = 0.0
        with numpy.errstate(divide="ignore"):
            log_probs = numpy.log(probs.numpy())
        drawn = numpy.array([id for ids in samples for id in ids], numpy.int64)
        first = numpy.array([place == 0 for ids in samples for place in range(len(ids))])
        return Rows(log_probs, drawn, numpy.arange(log_probs.shape[1]), first)


class OwnReference:
    """The server's own log probabilities of its answers, which are read to it as a prompt: so they are those of its
    target, without speculation. It lists the likeliest tokens of a row; all others are one symbol."""

    name = "server"

    def __init__(self, engine: Engine):
        self.engine = engine

    def encode(self, prompt: str) -> tuple[int, ...] | None:
        return self.engine.tokenise(prompt)

    def text(self, id: int) -> str:
        return f"number {id}"

    def rows(self, prompt: tuple[int, ...], samples: Sequence[Sample], sampling: SamplingParams) -> Iterator[Rows]:
        """Raises SpecvizError (field ``temperature``) for what is not the model's own softmax: of another temperature
        the likeliest tokens alone do not say what the rest comes to."""
        if sampling != SamplingParams(temperature=1.0):
            raise SpecvizError(
                "The server's own log probabilities judge samples at temperature 1 without filters only.", "temperature"
            )
        for sample in samples:
            if sample.ids:
                yield self._part(prompt, sample.ids)

    def _part(self, prompt: tuple[int, ...], ids: tuple[int, ...]) -> Rows:
        listed = self.engine.log_probs_of((*prompt, *ids))[len(prompt) :]
        width = max(map(len, listed)) + 1
        log_probs = numpy.full((len(ids), width), -numpy.inf)
        names = numpy.full((len(ids), width), -1, numpy.int64)
        drawn = numpy.zeros(len(ids), numpy.int64)
        for row, (id, likeliest) in enumerate(zip(ids, listed)):
            for column, (token, log_prob) in enumerate(likeliest.items(), start=1):
                log_probs[row, column], names[row, column] = log_prob, token
                drawn[row] = column if token == id else drawn[row]
            log_probs[row, 0] = numpy.log(max(1 - numpy.exp(log_probs[row, 1:]).sum(), LEAST_REST))
        return Rows(log_probs, drawn, names, numpy.arange(len(ids)) == 0)

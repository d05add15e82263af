"""What a server's samples are judged by: the target loaded here, or the server's own log probabilities of its answers.

A reference says of every token of an answer from which distribution it should come, given the answer so far.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy

from specviz.records.errors import SpecvizError, quoted
from specviz.records.settings import SamplingParams
from specviz.records.words import Sentence
from specviz.servers.engine import Asked, Engine
from specviz.theory.sample_tests import Rows

if TYPE_CHECKING:
    from torch import Tensor

    from specviz.models.pair import ModelPair

#: Probabilities that are held at once, and logits that are kept, so that other settings need no other pass.
MOST_VALUES, MOST_KEPT = 8_000_000, 64_000_000

#: Answers that are read to a server at once.
TOGETHER = 50

#: What rounding leaves at least of the symbols that are not listed.
LEAST_REST = 1e-9


#: Tokens of several answers.
Texts = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Sample:
    """An answer's tokens. ended: an end token follows them, which counts as one of them."""

    ids: tuple[int, ...]
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Law:
    """What is made of the target's logits. repeat: a logit of a token that the text has already is divided by it where
    it is positive, else multiplied (Keskar et al. 2019, as llama.cpp and vLLM do it)."""

    sampling: SamplingParams
    repeat: float = 1.0


class Reference(Protocol):
    name: str  # ``target`` or ``server``

    def encode(self, prompt: str) -> tuple[int, ...] | None:
        """The prompt's tokens; None where only the server knows them."""

    def text(self, id: int) -> str:
        """A token as it is named in a sentence."""

    whole: bool  # whether its rows list all tokens, so that other settings can be tried

    def rows(self, prompt: tuple[int, ...], samples: Sequence[Sample], law: Law) -> Iterator[Rows]:
        """The distributions of all tokens of these answers, in parts."""


class TargetReference:
    """The target of a pair that is loaded here. All of its end tokens count as one symbol: an engine does not say which
    of them ended an answer."""

    name, whole = "target", True

    def __init__(self, pair: ModelPair):
        self.pair = pair
        self.ends = sorted(pair.eos_ids)
        self._kept: tuple[tuple[int, ...], Texts, list[tuple[Texts, Tensor]]] = ((), (), [])

    def encode(self, prompt: str) -> tuple[int, ...]:
        return self.pair.encode(prompt).ids

    def text(self, id: int) -> str:
        return quoted(self.pair.texts.chip(id))

    def rows(self, prompt: tuple[int, ...], samples: Sequence[Sample], law: Law) -> Iterator[Rows]:
        """Raises SpecvizError (field ``target``) for ids that the target does not have: it is another model."""
        texts = tuple(filter(None, map(self._with_end, samples)))
        most = max((id for ids in texts for id in ids), default=0)
        if most >= self.pair.vocab_size:
            raise SpecvizError(
                "The server's token {id} is beyond the vocabulary of {target}: it serves another model.",
                "target",
                id=most,
                target=self.pair.target_name,
            )
        for part, logits in self._read(prompt, texts):
            yield self._rows(prompt, part, logits, law)

    def _with_end(self, sample: Sample) -> tuple[int, ...]:
        """Its tokens, the end among them as the first end token."""
        ids = tuple(self.ends[0] if id in self.pair.eos_ids else id for id in sample.ids)
        return (*ids, self.ends[0]) if sample.ended and self.ends and ids[-1:] != (self.ends[0],) else ids

    def _read(self, prompt: tuple[int, ...], texts: Texts) -> Iterator[tuple[Texts, Tensor]]:
        """Some texts at a time, and the logits in the place of each of their tokens, [tokens, vocab]."""
        import torch

        if self._kept[0] == prompt and self._kept[1][: len(texts)] == texts:
            left = len(texts)
            for part, logits in self._kept[2]:
                part, left = part[:left], max(0, left - len(part))
                if part:
                    yield part, logits[: sum(map(len, part))]
            return
        parts: list[tuple[Texts, Tensor]] = []
        size = self.pair.vocab_size
        keeps = sum(map(len, texts)) * size <= MOST_KEPT
        count = max(1, MOST_VALUES // (max(map(len, texts), default=1) * size))
        for start in range(0, len(texts), count):
            part = texts[start : start + count]
            longest = max(map(len, part))
            read = torch.tensor([[*prompt, *ids, *[0] * (longest - len(ids))] for ids in part], device=self.pair.device)
            with torch.inference_mode():
                # A token is judged by the row before it; what was filled in comes after all that is judged.
                logits = self.pair.target(read[:, :-1], logits_to_keep=longest, use_cache=False).logits[..., :size]
                judged = torch.cat([row[: len(ids)] for row, ids in zip(logits, part)]).float()
            parts += [(part, judged)] if keeps else []
            yield part, judged
        self._kept = (prompt, texts, parts) if keeps else ((), (), [])

    def _rows(self, prompt: tuple[int, ...], texts: Texts, logits: Tensor, law: Law) -> Rows:
        import torch

        from specviz.rules.sampling import Warper

        with torch.inference_mode():
            if law.repeat != 1:
                befores = ((*prompt, *ids[:place]) for ids in texts for place in range(len(ids)))
                logits = logits.clone()
                for row, before in zip(logits, map(list, befores)):
                    row[before] = torch.where(row[before] > 0, row[before] / law.repeat, row[before] * law.repeat)
            probs = Warper(law.sampling).probabilities(logits).double().cpu()
            if self.ends:
                probs[:, self.ends[0]] = probs[:, self.ends].sum(-1)
                probs[:, self.ends[1:]] = 0.0
        with numpy.errstate(divide="ignore"):
            log_probs = numpy.log(probs.numpy())
        drawn = numpy.array([id for ids in texts for id in ids], numpy.int64)
        first = numpy.array([place == 0 for ids in texts for place in range(len(ids))])
        return Rows(log_probs, drawn, numpy.arange(log_probs.shape[1]), first)


class OwnReference:
    """The server's own log probabilities of its answers, which are read to it as a prompt: so they are those of its
    target, without speculation. It lists the likeliest tokens of a row; all others are one symbol."""

    name, whole = "server", False

    def __init__(self, engine: Engine, at_once: int = 4):
        self.engine, self.at_once = engine, at_once

    def encode(self, prompt: str) -> tuple[int, ...] | None:
        return self.engine.tokenise(prompt)

    def text(self, id: int) -> str:
        return f"number {id}"

    def rows(self, prompt: tuple[int, ...], samples: Sequence[Sample], law: Law) -> Iterator[Rows]:
        """Raises SpecvizError (field ``temperature``) for what is not the model's own softmax: of another temperature
        the likeliest tokens alone do not say what the rest comes to."""
        if law != Law(SamplingParams(temperature=1.0)):
            raise SpecvizError(
                "The server's own log probabilities judge samples at temperature 1 without filters only.", "temperature"
            )
        texts = [sample.ids for sample in samples if sample.ids]
        with ThreadPoolExecutor(self.at_once) as pool:
            for start in range(0, len(texts), TOGETHER):
                part = texts[start : start + TOGETHER]
                asked = pool.map(lambda ids: self.engine.log_probs_of((*prompt, *ids)), part)
                yield self._part(part, [row for ids, rows in zip(part, asked) for row in self._last(rows, len(ids))])

    def _last(self, rows: list[dict[int, float]], count: int) -> list[dict[int, float]]:
        """The rows of an answer's tokens. Raises SpecvizError where there are fewer."""
        if len(rows) < count:
            raise self.engine.connection.complaint(
                "{server} gives no log probabilities of a prompt's tokens: let the model judge its samples, and name "
                "it with --target or on the page."
            )
        return rows[-count:]

    def _part(self, texts: Sequence[tuple[int, ...]], listed: Sequence[dict[int, float]]) -> Rows:
        drawn_ids = [id for ids in texts for id in ids]
        width = max(map(len, listed)) + 1
        log_probs = numpy.full((len(drawn_ids), width), -numpy.inf)
        names = numpy.full((len(drawn_ids), width), -1, numpy.int64)
        drawn = numpy.zeros(len(drawn_ids), numpy.int64)
        for row, (id, likeliest) in enumerate(zip(drawn_ids, listed)):
            for column, (token, log_prob) in enumerate(likeliest.items(), start=1):
                log_probs[row, column], names[row, column] = log_prob, token
                drawn[row] = column if token == id else drawn[row]
            log_probs[row, 0] = numpy.log(max(1 - numpy.exp(log_probs[row, 1:]).sum(), LEAST_REST))
        first = numpy.array([place == 0 for ids in texts for place in range(len(ids))])
        return Rows(log_probs, drawn, names, first)


@dataclass(frozen=True)
class SecondServer:
    """A server of the same model without speculation: no distribution is known, but what it draws."""

    server: Asked
    name: str = "second server"


def why_unjudged(engine: Engine, by: Reference | SecondServer, prompt: tuple[int, ...] | None) -> Sentence | None:
    """Why no samples of this engine can be judged so, before any are drawn; None if they can. prompt: its tokens, as
    far as they are known."""
    if not engine.names_ids:
        return Sentence(
            "{engine} does not say which tokens it makes, so its samples cannot be judged.", engine=engine.name
        )
    if not isinstance(by, OwnReference):
        return None
    if not engine.judges_prompts:
        return Sentence(
            "{engine} gives no log probabilities of a prompt: name the model that it serves, or a second server "
            "without speculation.",
            engine=engine.name,
        )
    if prompt is None:
        return Sentence(
            "{engine} does not say which tokens the prompt has: let requests reach its /tokenize, or name the model "
            "that it serves, or a second server without speculation.",
            engine=engine.name,
        )
    return None

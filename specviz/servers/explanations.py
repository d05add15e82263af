"""What may have been done to a model's distribution before a server's tokens were drawn from it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specviz.records.settings import SamplingParams
from specviz.records.words import Sentence
from specviz.servers.references import Law, Reference, Sample
from specviz.theory.sample_tests import SampleEvidence
from specviz.theory.truncation import GRID, TruncationEvidence

#: Penalties on repetition that are tried, and answers that such settings are fitted to; all answers then judge them.
PENALTIES, FITTED, NEWTON_STEPS = (1.05, 1.1, 1.15, 1.2, 1.3), 200, 3

#: So many answers for each different one say that they were not drawn independently.
REPEATS = 10


@dataclass(frozen=True, slots=True)
class Drawn:
    """Samples, and what they are judged by."""

    reference: Reference
    prompt: tuple[int, ...]
    samples: Sequence[Sample]
    temperature: float

    def law(self, **settings: float) -> Law:
        """The model's distribution at the temperature that was asked for, with further settings."""
        named: dict[str, Any] = {name: value for name, value in settings.items() if name != "repeat_penalty"}
        named |= {"top_k": int(settings["top_k"])} if "top_k" in settings else {}
        sampling = replace(SamplingParams(temperature=self.temperature), **named)
        return Law(sampling, settings.get("repeat_penalty", 1.0))

    def evidence(self, law: Law) -> SampleEvidence:
        """How the samples fit a distribution."""
        evidence = SampleEvidence(lenient=law != self.law())
        for rows in self.reference.rows(self.prompt, self.samples, law):
            evidence.add(rows)
        return evidence

    def truncation(self) -> TruncationEvidence:
        """What is missing from them."""
        truncation = TruncationEvidence()
        for rows in self.reference.rows(self.prompt, self.samples, self.law()):
            truncation.add(rows)
        return truncation


def explanations(drawn: Drawn, samplers: dict[str, float] | None) -> Iterator[tuple[dict[str, float], Law]]:
    """Settings and the distributions that they make, the likeliest first: what the server says, the filters by what is
    missing, each alone and all of them; a penalty on repetition, and another temperature.

    samplers: those that the server says were on; None if it does not say.
    """
    if samplers and set(samplers) <= {*GRID, "repeat_penalty"}:
        yield samplers, drawn.law(**samplers)
    truncation = drawn.truncation()
    found = truncation.found()
    for settings in [*({name: value} for name, value in found.items()), *([found] if len(found) > 1 else [])]:
        yield settings, drawn.law(**settings)
    few = replace(drawn, samples=drawn.samples[:FITTED])

    def off(penalty: float) -> float:
        return abs(few.evidence(few.law(repeat_penalty=penalty)).surprisal().statistic)

    nearest = min(PENALTIES, key=off)
    yield {"repeat_penalty": nearest}, drawn.law(repeat_penalty=nearest)
    if truncation.edges["top_k"] == 1:
        return  # all are the likeliest of their place: the lower a temperature, the better it fits
    temperature = drawn.temperature
    for _ in range(NEWTON_STEPS):
        temperature = min(10.0, temperature / few.evidence(few.law(temperature=temperature)).sharper)
    yield {"temperature": temperature}, drawn.law(temperature=temperature)


def repeated(samples: Sequence[Sample]) -> Sentence | None:
    """What to say where the same few answers come again and again; None where they do not."""
    different = len(set(samples))
    if different * REPEATS > len(samples):
        return None
    return Sentence(
        "Different answers: {different} of {answers}. Each request had its own seed, but the server does "
        "not seem to use it.",
        answers=len(samples),
        different=different,
    )

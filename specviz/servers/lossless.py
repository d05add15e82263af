"""Whether a server's samples are its model's: many short answers, each token judged by the distribution that it should
come from. Counters, acceptance and greedy texts can all be right where they are not."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy

from specviz.records.errors import SpecvizError
from specviz.records.metrics import NEAR_TIE
from specviz.records.prompts import PRESETS
from specviz.records.settings import SamplingParams, is_number, is_whole
from specviz.records.words import Sentence
from specviz.servers.answers import Answer, Ask
from specviz.servers.connection import MOST_AT_ONCE
from specviz.servers.engine import About, Asked, Engine
from specviz.servers.explanations import Drawn, explanations, repeated
from specviz.servers.references import Law, Reference, Sample, SecondServer, why_unjudged
from specviz.theory.sample_tests import MOST_COUNTED, TestResult, together, two_samples
from specviz.theory.statistics import SIGNIFICANT

Verdict = Literal["consistent", "differs", "truncated", "unknown"]

#: Answers that are drawn, and their length, unless something else is asked for; the fewest tokens that say anything.
ANSWERS, LENGTH, LEAST_TOKENS = 500, 16, 400

#: The most answers, and requests at once where a server does not say how many it answers.
MOST_ANSWERS, AT_ONCE = 20_000, 4

#: Seconds after which no more answers are asked for, unless something else is asked for.
SECONDS = 60.0

#: New tokens of the greedy answer.
GREEDY = 64

#: How many times larger the p-value must be with settings that explain the samples: fitted ones always help a little.
CLEARER = 1000.0

#: So few tokens may be impossible under a filter, by rounding at its border.
ACROSS = 0.002

#: Answers between two reports.
REPORT_EVERY = 20


@dataclass(frozen=True, slots=True)
class Greedy:
    """An answer at temperature 0 beside the reference's own choices after the same text."""

    tokens: int
    off: int  # tokens that are not the likeliest
    gap: float  # by how many nats the worst of these is less likely; rounding explains up to `NEAR_TIE`


@dataclass(frozen=True, slots=True)
class Lossless:
    """What is known so far. The verdict is made once, at the end: tests that are looked at again and again find
    something sooner or later."""

    about: About
    reference: str  # ``target``, ``server``, ``second server``
    prompt: str
    prompt_ids: tuple[int, ...] | None
    temperature: float
    neutral: bool  # whether all other samplers were switched off
    seed: int  # of the first answer; the next ones have the next seeds
    length: int  # tokens asked for with each answer
    wanted: int  # answers
    answers: int = 0
    tokens: int = 0
    verdict: Verdict = "unknown"
    statistic: float | None = None  # z of the surprisal; of two servers, that of the count that differs most
    p_value: float | None = None  # of all tests together
    tests: tuple[TestResult, ...] = ()
    filters: dict[str, float] = field(default_factory=dict)  # that were found to be on
    samplers: dict[str, float] | None = None  # that the server says were on beside the temperature
    finds: dict[str, float] = field(default_factory=dict)  # see `SampleEvidence.found`
    greedy: Greedy | None = None  # None of two servers
    sentence: Sentence | None = None  # what a maintainer could be sent
    most_off: Sentence | None = None  # which token is too frequent or too rare, or which temperature would fit
    broken: SpecvizError | None = None  # why no more answers came
    seconds: float = 0.0
    over: bool = False

    @property
    def fraction(self) -> float:
        return 1.0 if self.over else self.answers / self.wanted

    def to_dict(self) -> dict[str, Any]:
        """For a file."""
        said = {name: None if value is None else str(value) for name, value in self._said.items()}
        return asdict(replace(self, sentence=None, most_off=None, broken=None)) | said

    @property
    def _said(self) -> dict[str, object]:
        return {"sentence": self.sentence, "most_off": self.most_off, "broken": self.broken}


def test_samples(
    server: Asked,
    reference: Reference | SecondServer,
    *,
    prompt: str = PRESETS[0].prompt,
    answers: int = ANSWERS,
    length: int = LENGTH,
    temperature: float = 1.0,
    neutral: bool = True,
    seed: int = 1,
    budget: float = SECONDS,
    halted: Callable[[], bool] = lambda: False,
) -> Iterator[Lossless]:
    """What is known so far, again and again, until `answers` are there, `budget` seconds are over, it is `halted` or
    the server fails: then those that are there are judged. It may be closed anywhere.

    reference: what they are judged by (`specviz.servers.references`). neutral:
    False leaves the server's own samplers on. A server that computes in fewer bits than the reference draws from a
    slightly different distribution: for 4-bit weights with 8-bit activations, 0.003 nats (KL) away, it takes some
    400,000 tokens to show.

    Raises SpecvizError: what the server raises before anything was drawn;
    fields ``answers`` and ``temperature`` for what cannot be tested.
    """
    require_testable(answers, temperature)
    engine = server.engine
    ids = engine.tokenise(prompt) if isinstance(reference, SecondServer) else reference.encode(prompt)
    known = Lossless(server.about(), reference.name, prompt, ids, temperature, neutral, seed, length, answers)
    yield known
    if (sentence := why_unjudged(engine, reference, ids)) is not None:
        yield replace(known, sentence=sentence, over=True)
        return
    sampling = _Sampling(server, known, budget, halted)
    if isinstance(reference, SecondServer):
        drawn = yield from sampling.drawn(known)
        # Seeds of its own: two servers of one kind would draw alike from the same.
        second = replace(known, about=reference.server.about(), seed=seed + answers)
        others = _Sampling(reference.server, second, budget, halted)
        other = yield from others.drawn(sampling.known)
        ends_apart = _ends_apart(engine, drawn), _ends_apart(reference.server.engine, other)
        yield _compared(sampling.known, *ends_apart)
    else:
        greedy = engine.answer(replace(sampling.ask(0), temperature=0.0, max_new_tokens=GREEDY))
        drawn = yield from sampling.drawn(known)
        yield _judged(replace(sampling.known, greedy=_greedy(known, reference, greedy)), reference, drawn)


def require_testable(answers: int, temperature: float) -> None:
    """Raises SpecvizError (field ``answers`` or ``temperature``) for samples that cannot be tested."""
    if not is_whole(answers) or not 1 <= answers <= MOST_ANSWERS:
        raise SpecvizError("Enter whole numbers from 1 to {most}.", "answers", most=MOST_ANSWERS)
    if not is_number(temperature) or not 0 < temperature <= 10:
        raise SpecvizError("Samples are drawn at a temperature above 0.", "temperature")


@dataclass
class _Sampling:
    """Draws answers of one server."""

    server: Asked
    known: Lossless
    budget: float
    halted: Callable[[], bool]

    def drawn(self, shown: Lossless) -> Generator[Lossless, None, list[Sample]]:
        """The answers in the order of their seeds, so many at a time; the first ones only, where the time is over.
        shown: what is said meanwhile."""
        known, began = self.known, time.perf_counter()
        makes: dict[Future[Answer], int] = {}
        there: dict[int, Answer] = {}
        numbers = iter(range(known.wanted))
        # A server may take more requests at once than answers are wanted: what is asked can no longer be stopped.
        at_once = min(known.about.slots or AT_ONCE, MOST_AT_ONCE)
        with ThreadPoolExecutor(at_once) as pool:
            try:
                while True:
                    spent = time.perf_counter() - began
                    goes_on = spent < self.budget and known.broken is None and not self.halted()
                    while goes_on and len(makes) < at_once:
                        if (number := next(numbers, None)) is None:
                            break
                        makes[pool.submit(self.server.engine.answer, self.ask(number))] = number
                    if not makes:
                        break
                    for future in wait(makes, timeout=0.2, return_when=FIRST_COMPLETED).done:
                        number, failed = makes.pop(future), future.exception()
                        if failed is None:
                            there[number] = future.result()
                        elif isinstance(failed, SpecvizError) and there:
                            known = replace(known, broken=failed)
                        else:
                            raise failed
                    if len(there) - known.answers >= REPORT_EVERY:
                        known = _with(known, there, spent)
                        yield replace(shown, answers=known.answers, tokens=known.tokens, seconds=known.seconds)
            finally:
                for future in makes:
                    future.cancel()
        known = _with(known, there, time.perf_counter() - began)
        last = there[max(there)] if there else None
        self.known = replace(known, samplers=self.server.engine.samplers_in(last) if last else None)
        return [_sample(there[number]) for number in sorted(there)]

    def ask(self, number: int) -> Ask:
        known = self.known
        takes_ids = known.prompt_ids is not None and self.server.engine.takes_ids
        prompt: str | tuple[int, ...] = known.prompt_ids if takes_ids and known.prompt_ids else known.prompt
        return Ask(prompt, known.length, known.temperature, known.seed + number, known.neutral)


def _with(known: Lossless, there: dict[int, Answer], seconds: float) -> Lossless:
    tokens = sum(len(answer.ids) for answer in there.values())
    return replace(known, answers=len(there), tokens=tokens, seconds=seconds)


def _sample(answer: Answer) -> Sample:
    """Its tokens up to one that the engine left out."""
    ids: list[int] = []
    for id in answer.ids:
        if id is None:
            return Sample(tuple(ids))
        ids.append(id)
    return Sample(tuple(ids), answer.end == "end")


def _judged(known: Lossless, reference: Reference, samples: Sequence[Sample]) -> Lossless:
    """The verdict by the distributions that the tokens should come from."""
    drawn = Drawn(reference, known.prompt_ids or (), samples, known.temperature)
    evidence = drawn.evidence(drawn.law())
    tests = evidence.tests()
    known = replace(known, tokens=evidence.tokens, finds=evidence.found, over=True)
    p_value = together(tests)
    known = replace(known, tests=tuple(tests), statistic=tests[0].statistic, p_value=p_value)
    if evidence.tokens < LEAST_TOKENS:
        return replace(known, sentence=_too_few(evidence.tokens))
    if p_value >= SIGNIFICANT:
        consistent = _said(replace(known, verdict="consistent"))
        if known.greedy is not None and known.greedy.gap > NEAR_TIE:
            return replace(consistent, verdict="differs", most_off=_parted(known.greedy))
        return consistent
    for settings, law in explanations(drawn, known.samplers) if reference.whole else ():
        fits = drawn.evidence(law)
        explained = max(SIGNIFICANT, p_value * CLEARER)
        if together(fits.tests()) < explained or fits.impossible > ACROSS * fits.tokens:
            continue
        if "temperature" in settings:
            fitting = Sentence("They fit temperature {temperature}.", temperature=f"{settings['temperature']:.2f}")
            return replace(_said(replace(known, verdict="differs")), most_off=fitting)
        return _said(replace(known, verdict="truncated", filters=settings))
    known = _said(replace(known, verdict="differs"))
    if (said := repeated(samples)) is not None:
        return replace(known, most_off=said)
    counts = next(test for test in tests if test.name == "counts")
    return replace(known, most_off=_most_off(counts, reference)) if counts.p_value < SIGNIFICANT else known


def _greedy(known: Lossless, reference: Reference, answer: Answer) -> Greedy | None:
    """None where the first token is not known already."""
    sample, gaps = _sample(answer), numpy.zeros(0)
    for rows in reference.rows(known.prompt_ids or (), [sample], Law(SamplingParams(temperature=1.0))):
        chosen = rows.log_probs[numpy.arange(len(rows.drawn)), rows.drawn]
        # Of tokens that are not listed only their sum is known, as column 0: it stands for no token.
        best = rows.log_probs[:, 0 if reference.whole else 1 :].max(-1)
        gaps = numpy.append(gaps, (best - chosen).clip(min=0))
    return Greedy(len(gaps), int((gaps > 0).sum()), float(gaps.max())) if len(gaps) else None


def _parted(greedy: Greedy) -> Sentence:
    return Sentence(
        "But the answer at temperature 0 is not the model's: one of its tokens is {gap} nats less likely than the "
        "model's choice, which rounding does not explain.",
        gap=f"{greedy.gap:.2f}",
    )


def _most_off(counts: TestResult, reference: Reference) -> Sentence:
    token, detail = reference.text(int(counts.detail["id"])), counts.detail
    return Sentence(
        "The token {token} came {count} times where {expected} were expected.",
        token=token,
        count=round(detail["count"]),
        expected=round(detail["expected"]),
    )


def _too_few(tokens: int) -> Sentence:
    return Sentence("{tokens} tokens are too few to judge by: {least} at least.", tokens=tokens, least=LEAST_TOKENS)


def _compared(known: Lossless, samples: Sequence[Sample], others: Sequence[Sample]) -> Lossless:
    """The verdict by how often each token stands in the answers of either server."""
    tokens = sum(len(sample.ids) for sample in samples)
    known = replace(known, over=True, tokens=tokens)
    if min(tokens, sum(len(sample.ids) for sample in others)) < LEAST_TOKENS:
        return replace(known, sentence=_too_few(tokens))
    total = numpy.bincount([id for sample in (*samples, *others) for id in sample.ids])
    frequent = numpy.argsort(total)[::-1][:MOST_COUNTED]
    test = two_samples(*(_counts(of, frequent) for of in (samples, others)))
    known = replace(known, tests=(test,), statistic=test.statistic, p_value=test.p_value)
    return _said(replace(known, verdict="consistent" if test.p_value >= SIGNIFICANT else "differs"))


def _ends_apart(engine: Engine, samples: Sequence[Sample]) -> list[Sample]:
    """Without the end tokens, which only some engines name."""
    return [replace(each, ids=each.ids[:-1]) if each.ended and engine.names_end else each for each in samples]


def _counts(samples: Sequence[Sample], frequent: Any) -> Any:
    """How often each of the frequent tokens stands in each answer, and whether the answer ended."""
    return numpy.array([[*(each.ids.count(int(id)) for id in frequent), each.ended] for each in samples], float)


def _said(known: Lossless) -> Lossless:
    """With the sentence about the verdict."""
    values: dict[str, object] = {"answers": known.answers, "tokens": known.tokens, "temperature": known.temperature}
    values |= {"engine": f"{known.about.engine} {known.about.version or ''}".rstrip()}
    p = "< 1e-300" if not known.p_value else f"= {known.p_value:.2g}"
    if known.verdict == "consistent":
        sentence = Sentence(
            "{engine}: {tokens} tokens of {answers} answers at temperature {temperature} show no difference (p {p}).",
            p=p,
            **values,
        )
    elif known.verdict == "truncated":
        filters = ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in known.filters.items())
        sentence = Sentence(
            "{engine}: {tokens} tokens of {answers} answers at temperature {temperature} follow the model cut off by "
            "{filters}, which was left on.",
            filters=filters,
            **values,
        )
    elif known.reference == "second server":
        sentence = Sentence(
            "{engine}: {tokens} tokens of {answers} answers at temperature {temperature} are not drawn as those of the "
            "second server are (p {p}).",
            p=p,
            **values,
        )
    else:
        sentence = Sentence(
            "{engine}: {tokens} tokens of {answers} answers at temperature {temperature} are not drawn from the "
            "model's distribution (p {p}).",
            p=p,
            **values,
        )
    return replace(known, sentence=sentence)

"""Figures of each way to draft on some prompts, by domain; which of them pays; how servers do the same. No torch."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING

from specviz.bench.contestants import PLAIN, Contestant, Figures, TimedRun, figures_of
from specviz.records.metrics import tally
from specviz.theory.statistics import Ratio, alike, over_prompts

if TYPE_CHECKING:
    from specviz.drafters.base import Servers

#: The name of all prompts together, where they belong to several domains.
ALL = "all"

#: A line of a report that was made before everything was measured.
INTERRUPTED = "Interrupted: only the measurements so far."

#: With fewer prompts the turns' own interval is wider than a bootstrap's over so small a sample.
FEWEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkRow(Figures):
    """One contestant on the prompts of one domain; from `FEWEST` prompts on, the speedup's interval is over prompts."""

    domain: str
    contestant: Contestant
    prompts: int
    tokens_a_pass: Ratio
    kept_at: tuple[Ratio, ...]  # by draft position: kept given that it was reached


@dataclass(slots=True)
class WorkReport:
    """The values of the JSON file of a benchmark on prompts of one's own, as far as it has come."""

    machine: dict[str, str | int | float | None]
    pair: dict[str, str | int | None]
    temperature: float
    prompts: int
    rows: list[WorkRow] = field(default_factory=list)
    failed: list[dict[str, str]] = field(default_factory=list)  # contestants that failed: "title" and "reason"
    interrupted: bool = False  # it was ended before it was over
    schema: str = "specviz.work/1"


@dataclass
class Work:
    """The measurements so far, prompt by prompt."""

    contestants: Sequence[Contestant]  # plain decoding first
    domains: Sequence[str]  # of each prompt
    failed: Mapping[str, object] = field(default_factory=dict)  # contestants that failed so far, by title, and why
    runs: dict[Contestant, list[TimedRun]] = field(default_factory=dict)

    def add(self, run: TimedRun) -> None:
        """A run on a prompt, by whose number its group begins (`on_each_prompt`)."""
        self.runs.setdefault(self.contestants[run.number], []).append(run)

    def rows(self) -> list[WorkRow]:
        """Every contestant but plain decoding and those that failed, as far as it was measured, on all prompts and on
        each domain."""
        names = list(dict.fromkeys(self.domains))
        asked = [(ALL, range(len(self.domains)))]
        if len(names) > 1:
            # A domain named like the rows of all prompts is part of those.
            names = [name for name in names if name != ALL]
            asked += [(name, [i for i, domain in enumerate(self.domains) if domain == name]) for name in names]
        able = [one for one in self.contestants[1:] if one.title not in self.failed]
        made = ((domain, one, prompts) for domain, prompts in asked for one in able)
        return [row for domain, one, prompts in made if (row := self._row(domain, one, set(prompts))) is not None]

    def _row(self, domain: str, contestant: Contestant, prompts: set[int]) -> WorkRow | None:
        own = [run for run in self.runs.get(contestant, ()) if _prompt(run) in prompts]
        turns = {(run.group, run.repeat) for run in own}
        plain = [run for run in self.runs.get(Contestant(PLAIN), ()) if (run.group, run.repeat) in turns]
        if not own or not plain:
            return None
        figures, met = figures_of(own, plain), {_prompt(run) for run in own}
        if len(met) >= FEWEST:
            ratio = _over_prompts(own, plain, met)
            figures = replace(figures, speedup_measured=ratio.value, speedup_interval=(ratio.low, ratio.high))
        length, *kept = _acceptance(own, met)
        return WorkRow(
            domain=domain,
            contestant=contestant,
            prompts=len(met),
            tokens_a_pass=length,
            kept_at=tuple(kept),
            **asdict(figures),
        )


def _prompt(run: TimedRun) -> int:
    return run.group[0]


def _over_prompts(own: Sequence[TimedRun], plain: Sequence[TimedRun], prompts: set[int]) -> Ratio:
    """The speedup with its interval over prompts."""

    def spent(runs: Sequence[TimedRun], prompt: int) -> tuple[float, float]:
        met = [run for run in runs if _prompt(run) == prompt]
        return sum(len(run.token_ids) for run in met), sum(run.seconds for run in met)

    sums = [(*spent(own, prompt), *spent(plain, prompt)) for prompt in sorted(prompts)]
    return over_prompts(sums, lambda s: s[:, 0] / s[:, 1] / (s[:, 2] / s[:, 3]))


def _acceptance(own: Sequence[TimedRun], prompts: set[int]) -> Iterator[Ratio]:
    """Tokens a pass; then, position by position, how many were kept of those that were reached."""
    counts = [tally(one for run in own if _prompt(run) == prompt for one in run.rounds) for prompt in sorted(prompts)]
    yield over_prompts([(one.accepted, one.rounds) for one in counts], lambda s: 1 + s[:, 0] / s[:, 1])
    for place in range(max((len(one.judged_at) for one in counts), default=0)):
        sums = [(_at(one.accepted_at, place), _at(one.judged_at, place)) for one in counts]
        if any(judged for _, judged in sums):
            yield over_prompts(sums, lambda s: s[:, 0] / s[:, 1])


def _at(counts: Sequence[int], place: int) -> int:
    return counts[place] if place < len(counts) else 0


# Advice


@dataclass(frozen=True, slots=True)
class Offer:
    """One way to draft, and its figures against plain decoding."""

    row: WorkRow  # on all prompts
    draft: str | None = None  # the draft model that it needs, as it was named
    translated: bool = False  # whether that has another tokenizer
    servers: Servers | None = None  # see `servers_of`; None: those of the drafter's own class

    @property
    def mode(self) -> str:
        """The drafter's name."""
        return self.row.contestant.mode

    @property
    def num_draft_tokens(self) -> int:
        return self.row.contestant.num_draft_tokens

    @property
    def outcome(self) -> str:
        """``plain`` where it is no faster than plain decoding, ``pays`` where its whole interval is, else
        ``unclear``."""
        ratio = self.row.ratio
        if ratio.value <= 1:
            return "plain"
        return "pays" if ratio.low is not None and ratio.low > 1 else "unclear"


def ranked(offers: Sequence[Offer]) -> list[Offer]:
    """The fastest first, as far as can be counted on: by the lower ends of their intervals."""
    return sorted(offers, key=lambda one: -(one.row.ratio.low or 0.0))


def offers_of(
    rows: Sequence[WorkRow], draft: str | None, translated: bool, servers: Mapping[str, Servers]
) -> list[Offer]:
    """The ways measured on all prompts. draft: the pair's draft model, as it was named; translated, servers: see
    `Offer`; servers by the drafters' names."""
    models = {"draft_model": (draft, translated)}
    return [
        Offer(row, *models.get(row.contestant.mode, (None, False)), servers.get(row.contestant.mode))
        for row in rows
        if row.domain == ALL and row.ratio is not None
    ]


def good_lengths(offers: Sequence[Offer], best: Offer) -> list[int]:
    """The γ of the best offer's drafter that cannot be told apart from its own, in ascending order."""
    same = [one for one in offers if (one.mode, one.draft) == (best.mode, best.draft)]
    return sorted(one.num_draft_tokens for one in same if alike(one.row.ratio, best.row.ratio))


@dataclass(frozen=True, slots=True)
class ServerFlags:
    """How to make a server draft in this way."""

    server: str
    flags: str | None  # None where it has no such way
    note: str = ""  # anything else that it needs; the key of a sentence


def server_flags(offer: Offer) -> tuple[ServerFlags, ...]:
    """The flags of each server for chains of this drafter and length."""
    from specviz.drafters.registry import class_named  # here, so that this module can be imported without torch

    names, gamma = offer.servers or class_named(offer.mode).servers, offer.num_draft_tokens
    model = offer.draft or names.model
    all_of_them = _vllm(names, gamma, model), _sglang(names, gamma, model), _llama_cpp(names, gamma, model)
    return tuple(replace(one, note="tokenizers") if offer.translated and one.flags else one for one in all_of_them)


def _vllm(names: Servers, gamma: int, model: str | None) -> ServerFlags:
    if names.vllm is None:
        return ServerFlags("vLLM", None)
    config = {"method": names.vllm} | ({"model": model} if model else {}) | {"num_speculative_tokens": gamma}
    if names.in_parallel:
        config |= {"parallel_drafting": True}
    if names.vllm == "ngram":
        config |= {"prompt_lookup_max": names.ngram[1], "prompt_lookup_min": names.ngram[0]}
    return ServerFlags("vLLM", f"--speculative-config {shlex.quote(json.dumps(config))}", names.note)


def _sglang(names: Servers, gamma: int, model: str | None) -> ServerFlags:
    if names.sglang is None:
        return ServerFlags("SGLang", None)
    flags, ngram = ["--speculative-algorithm", names.sglang], names.sglang == "NGRAM"
    if model:
        flags += ["--speculative-draft-model-path", model]
    if not ngram:
        flags += ["--speculative-num-steps", str(gamma), "--speculative-eagle-topk", "1"]
    # One more than are drafted: the pass reads the last token of the text too.
    flags += ["--speculative-num-draft-tokens", str(gamma + 1)]
    return ServerFlags("SGLang", shlex.join(flags), "trie" if ngram else names.note)


def _llama_cpp(names: Servers, gamma: int, model: str | None) -> ServerFlags:
    if names.llama_cpp is None:
        return ServerFlags("llama.cpp", None)
    if names.llama_cpp == "ngram-simple":
        sizes = f"--spec-ngram-simple-size-n {names.ngram[1]} --spec-ngram-simple-size-m {gamma}"
        return ServerFlags("llama.cpp", f"--spec-type ngram-simple {sizes}", "lookup")
    flags = ["--spec-type", names.llama_cpp, "--spec-draft-n-max", str(gamma)]
    if model:
        flags = ["--model-draft", f"{model}.gguf", *flags]
    return ServerFlags("llama.cpp", shlex.join(flags), "gguf" if model else "")

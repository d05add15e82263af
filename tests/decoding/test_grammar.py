"""Under a grammar the output follows the masked target: its law is enumerated, and greedy text is `generate`'s."""

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

import llguidance.hf
import numpy as np
import pytest
import torch
from enumeration import Outcome, flips
from matrix import EXACT, PROMPT, drafting_with, pair_of, prepared_pair
from tiny import END
from transformers import GenerationConfig, LogitsProcessor

import specviz
from specviz.decoding.continuation import Continuation
from specviz.decoding.decoder import decoder_of
from specviz.decoding.engine import replay
from specviz.decoding.exact_distribution import exact_distribution
from specviz.decoding.request import Request, prepare
from specviz.drafters import DRAFTERS
from specviz.models.pair import ModelPair
from specviz.records.settings import DraftParams, RunSettings, SamplingParams
from specviz.rules.draft import Uniforms, Verdict
from specviz.rules.sampling import Warper

Text = tuple[int, ...]

#: What may be written, in the first characters of the tiny pair's vocabulary; and as a grammar.
WORDS = {"!", '"', '"#', '"!', "#!", "#!!"}
GRAMMAR = f"/{'|'.join(map(re.escape, sorted(WORDS)))}/"

#: Filters after the mask: before it they would leave nothing where the two likeliest tokens are forbidden.
HOT_AND_WARPED = SamplingParams(temperature=3.0, top_k=2)

#: The longest text: "#!!" has no room for an end token.
TOKENS = 3

#: Every drafter by one rule, in turn, and the draft model by all of them; trees with one branch more than a chain.
FITTING = [[case for case in EXACT if case[0] == drafter] for drafter in DRAFTERS]
CASES = {cases[place % len(cases)] for place, cases in enumerate(FITTING)} | set(FITTING[0])
CASES = sorted((drafter, rule, min(branches, 2)) for drafter, rule, branches in CASES)


@lru_cache
def tiny() -> ModelPair:
    """With an end token, unlike `pair_of`."""
    pair = pair_of()
    return dataclasses.replace(pair, eos_ids=frozenset({pair.tokenizer.convert_tokens_to_ids(END)}))


def order(pair: ModelPair, drafter: str, rule: str, branches: int, sampling: SamplingParams) -> Request:
    settings = drafting_with(drafter, rule, branches) | {"num_draft_tokens": 2, "sampling": sampling}
    return prepare(pair, RunSettings(tuple(PROMPT), max_new_tokens=TOKENS, grammar=GRAMMAR, **settings))


@pytest.mark.parametrize("drafter, rule, branches", CASES)
def test_the_law_of_the_text_is_that_of_masked_plain_decoding(drafter, rule, branches):
    """By enumeration of the engine's own rounds: every draft, every way the coins can fall, every next token."""
    sampling = HOT_AND_WARPED if branches == 1 else SamplingParams(temperature=3.0)
    law, due = law_of(order(tiny(), drafter, rule, branches, sampling)), masked_law(tiny(), sampling)
    assert due.keys() == law.keys() and len(due) > 2
    assert all(law[text] == pytest.approx(due[text], abs=1e-5) for text in due)


def masked_law(pair: ModelPair, sampling: SamplingParams) -> Counter[Text]:
    """The law of the texts that plain decoding writes, from the words alone, by passes over the whole text."""
    law: Counter[Text] = Counter()

    def go_on(text: Text, chance: float) -> None:
        if len(text) == TOKENS or pair.eos_ids.intersection(text):
            law[text] += chance
            return
        logits = pair.target(torch.tensor([[*PROMPT, *text]])).logits[0, -1:].clone()
        written = pair.tokenizer.decode(text)
        for token in range(pair.vocab_size):
            longer = written + pair.tokenizer.decode([token])
            fits = written in WORDS if token in pair.eos_ids else any(word.startswith(longer) for word in WORDS)
            logits[0, token] = logits[0, token] if fits else -torch.inf
        row = Warper(sampling).probabilities(logits)[0]
        for token in row.nonzero().flatten().tolist():
            go_on((*text, token), chance * row[token].item())

    with torch.inference_mode():
        go_on((), 1.0)
    return law


def law_of(request: Request) -> Counter[Text]:
    """The law of the texts that the engine writes."""
    law: Counter[Text] = Counter()

    def go_on(text: Text, chance: float) -> None:
        for way in ways(request, text):
            for token in way.next_probs.nonzero().flatten().tolist():
                end = Continuation(request)
                end.extend((*text, *way.kept, token))
                written = tuple(end.committed[len(PROMPT) :])
                share = chance * way.chance * way.next_probs[token].item()
                if end.stop_reason:
                    law[written] += share
                else:
                    go_on(written, share)

    go_on((), 1.0)
    return law


def ways(request: Request, text: Text) -> Iterator[Outcome]:
    """Every way the round after a text can go."""
    for chance, verdict in drafts(request, text, (), 1.0):
        rows, _, uniforms = verdict.details()
        draft, branches = verdict.draft, [()]
        for token, parent in zip(draft.tokens.tolist(), draft.parents):
            branches.append((*branches[parent + 1], token))

        def decide(coins, verdict=verdict, rows=rows, uniforms=uniforms):
            return request.deciding_rule.decide(verdict.draft, rows, dataclasses.replace(uniforms, accept=coins))

        weighs_all = request.deciding_rule.weighs_all or request.deciding_rule.paths
        yield from flips(decide, branches[1:], draft.parents, chance, weighs_all)


def drafts(request: Request, text: Text, drawn: Text, chance: float, draws: tuple[float, ...] = ()) -> Iterator:
    """Every draft after a text that begins with the tokens `drawn`, by these draws, with its probability."""
    verdict = round_after(request, text, draws)
    draft = verdict.draft
    assert tuple(draft.tokens.tolist()[: len(drawn)]) == drawn, "what was drawn is not what q says"
    if draft.probs is None or len(drawn) == len(draft.parents):
        yield chance, verdict
        return
    row = draft.probs[len(drawn)].double() / draft.probs[len(drawn)].double().sum()
    for token in row.nonzero().flatten().tolist():
        middle = (row.cumsum(0)[token] - row[token] / 2).item()
        yield from drafts(request, text, (*drawn, token), chance * row[token].item(), (*draws, middle))


@torch.inference_mode()
def round_after(request: Request, text: Text, draws: tuple[float, ...]) -> Verdict:
    """The engine's own round, with these draws."""
    decoder, committed = decoder_of(request), [*PROMPT, *text]
    decoder.prefill(committed)
    coins = decoder.coins.flip()
    coins.draft[: len(draws)] = torch.tensor(draws, dtype=torch.float64)
    decoder.coins.flip = lambda: Uniforms(coins.draft, coins.accept, coins.next)
    return decoder.round(committed, request.allowed_depth(2, TOKENS - len(text) - 1))


# Whole runs


@pytest.mark.parametrize("passes", ["kernels", "graphs"])
@pytest.mark.parametrize("drafter, branches", [(None, 1), ("draft_model", 1), ("eagle", 2), ("medusa", 2)])
def test_prepared_passes_write_under_a_grammar_what_plain_ones_write(passes, drafter, branches):
    """Drafts in one call, a judge in C++, rounds without the host: none of them may leave the mask out."""
    pairs = [tiny(), dataclasses.replace(prepared_pair("llama", passes), eos_ids=tiny().eos_ids)]
    order = {"drafter": drafter, "drafting": DraftParams(branches), "sampling": SamplingParams(3.0), "seed": 5}
    plain, prepared = (specviz.run(pair, PROMPT, grammar=GRAMMAR, **order) for pair in pairs)
    assert prepared.token_ids == plain.token_ids and plain.text in WORDS


def test_where_no_token_ends_a_text_the_run_stops_once_none_may_follow():
    run = specviz.run(pair_of(), PROMPT, grammar="/!#!/", max_new_tokens=9)
    assert (run.text, run.stop_reason) == ("!#!", "grammar")
    assert specviz.run(pair_of(), PROMPT, grammar="/!#!/", max_new_tokens=3).stop_reason == "length"


def test_the_lab_knows_the_law_under_a_grammar():
    sampling = SamplingParams(temperature=3.0)
    exact = exact_distribution(order(tiny(), "draft_model", "token", 1, sampling))
    due: Counter[Text] = Counter()
    for text, chance in masked_law(tiny(), sampling).items():
        due[text[:2]] += chance
    assert dict(zip(exact.outcomes, exact.probs, strict=True)) == pytest.approx(due, abs=1e-5)
    assert exact.rounding < 1e-5


# The embedded pair

SCHEMA = """{
  "type": "object",
  "properties": {
    "name": {"type": "string", "maxLength": 12},
    "colours": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3}
  },
  "required": ["name", "colours"],
  "additionalProperties": false,
  "x-guidance": {"whitespace_flexible": false}
}"""


@lru_cache
def embedded() -> ModelPair:
    return specviz.load_pair(dtype="float32", passes="plain")


def written(temperature: float, drafter: str | None = "draft_model") -> specviz.Run:
    settings = {"sampling": SamplingParams(temperature), "drafter": drafter, "max_new_tokens": 100, "seed": 3}
    return specviz.run(embedded(), "A person: ", grammar=SCHEMA, **settings)


@pytest.mark.parametrize("drafter", [None, *DRAFTERS])
def test_every_text_under_a_schema_fits_it(drafter):
    run = written(1.0, drafter)
    value = json.loads(run.text)
    assert run.stop_reason == "eos" and value.keys() == {"name", "colours"} and len(value["name"]) <= 12
    assert {*value["colours"]} <= {"red", "blue"} and len(value["colours"]) <= 3


class ByLibrary(LogitsProcessor):
    """Masks what the library forbids, for transformers' `generate`."""

    def __init__(self, prompt_length: int):
        self.prompt_length = prompt_length
        tokens = llguidance.hf.from_tokenizer(embedded().tokenizer, eos_token=list(embedded().eos_ids))
        self.start = llguidance.LLMatcher(tokens, llguidance.grammar_from("json", SCHEMA))

    def mask(self, text: list[int]) -> torch.Tensor:
        matcher = self.start.deep_copy()
        assert matcher.consume_tokens(text)
        bias = np.frombuffer(matcher.compute_logit_bias(), dtype=np.uint8)
        return torch.from_numpy(bias[: embedded().vocab_size] > 0)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.masked_fill(~self.mask(input_ids[0, self.prompt_length :].tolist()), -torch.inf)


def test_greedy_text_is_that_of_generate_with_the_librarys_mask():
    runs = [written(0, drafter) for drafter in (None, "draft_model", "eagle", "suffix")]
    prompt = torch.tensor([runs[0].prompt.ids])
    config = GenerationConfig(max_new_tokens=100, do_sample=False, pad_token_id=0, eos_token_id=[*embedded().eos_ids])
    due = embedded().target.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        generation_config=config,
        logits_processor=[ByLibrary(prompt.shape[1])],
    )
    assert [list(run.token_ids) for run in runs] == [due[0, prompt.shape[1] :].tolist()] * len(runs)


def test_the_record_says_how_many_tokens_were_allowed_and_how_likely_they_were_without_the_mask():
    run, text = written(1.0), []
    library = ByLibrary(len(run.prompt.ids))
    for one in run.rounds:
        for place, row in enumerate(one.top[: len(one.emitted)]):
            before = [*text, *(token.id for token in one.drafted[:place])]
            mask = library.mask(before)
            with torch.inference_mode():
                logits = embedded().target(torch.tensor([[*run.prompt.ids, *before]])).logits[0, -1]
            assert row.allowed == mask.sum()
            assert row.allowed_mass == pytest.approx(logits.softmax(-1)[mask].sum().item(), rel=1e-3)
            assert all(mask[id] for id, _ in (*row.p, *row.p_raw, *row.q, *row.q_raw))
        text += one.emitted
    assert run.pair.vocab_size == embedded().vocab_size
    assert specviz.run(embedded(), "A person: ", max_new_tokens=2).rounds[0].top[0].allowed is None


def test_a_rule_that_judges_the_same_drafts_again_has_the_same_rows_on_record():
    request = order(tiny(), "draft_model", "token", 1, SamplingParams(temperature=3.0))
    pairs = list(replay(request, "block"))
    said = [[(row.allowed, row.allowed_mass) for one in rounds for row in one.top] for rounds in zip(*pairs)]
    assert said[0] == said[1] and any(allowed for allowed, _ in said[0])


def test_a_model_drafts_what_is_allowed_and_a_copy_of_what_is_not_is_rejected():
    model, copier = (
        [token for one in written(1.0, name).rounds for token in one.drafted] for name in ("mtp", "suffix")
    )
    assert model and all(token.p for token in model)
    forbidden = [token for token in copier if not token.p]
    assert forbidden and not any(token.outcome == "accepted" for token in forbidden)

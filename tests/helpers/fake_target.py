"""Targets that need no model: a next token for every context, to try drafters on."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace

import torch

from specviz.drafters.base import Drafter
from specviz.rules.draft import Draft, Verdict

Target = Callable[[Sequence[int]], int]


def copying(kind: type[Drafter], branches: int | None = None, seed: int = 0, **constants: int) -> Drafter:
    """A drafter of this kind, which needs no model, with some of its class's constants replaced."""
    pair = SimpleNamespace(device=torch.device("cpu"))
    context = SimpleNamespace(pair=pair, branches=branches or kind.default_branches, seed=seed)
    return type(kind.__name__, (kind,), constants)(context)


def branch(draft: Draft, index: int) -> list[int]:
    """The tokens from the committed text to draft token `index`, that one included."""
    tokens = []
    while index >= 0:
        tokens.insert(0, int(draft.tokens[index]))
        index = draft.parents[index]
    return tokens


def draft_of(drafter: Drafter, committed: Sequence[int], budget: int) -> Draft:
    """A draft, having been checked for what every draft has to keep to."""
    draft = drafter.propose(committed, budget, torch.rand(64 * budget, dtype=torch.float64))
    tokens, parents = draft.tokens.tolist(), draft.parents
    assert draft.tokens.dtype == torch.int64 and draft.tokens.shape == (len(parents),)
    assert all(-1 <= parent < index for index, parent in enumerate(parents)), "a parent stands after its child"
    assert len({*zip(parents, tokens, strict=True)}) == len(tokens), "equal siblings"
    assert all(len(branch(draft, index)) <= budget for index in range(len(tokens))), "deeper than the budget"
    assert draft.probs is None and draft.logits is None and draft.draws is None
    assert len(draft.sources) == len(tokens)
    return draft


def verdict(path: Sequence[int], tokens: Sequence[int], choices: Sequence[int] = ()) -> Verdict:
    """As much of one as a drafter looks at."""
    return Verdict(tuple(path), tuple(tokens), tuple(choices), parents=(), drafted=None, recall=None, held_bytes=0)


def verdict_on(draft: Draft, committed: Sequence[int], target: Target) -> Verdict:
    """What greedy verification says: the target's own continuation is followed through the tree."""
    choices = [target([*committed, *branch(draft, index)]) for index in range(-1, len(draft.parents))]
    path, at = [], -1
    for index, (token, parent) in enumerate(zip(draft.tokens.tolist(), draft.parents, strict=True)):
        if parent == at and token == choices[at + 1]:
            path.append(index)
            at = index
    return verdict(path, [*(int(draft.tokens[index]) for index in path), choices[at + 1]], choices)


def decode(drafter: Drafter, target: Target, prompt: Sequence[int], count: int, budget: int) -> tuple[list[int], int]:
    """Speculative greedy decoding: the text with `count` new tokens, and the target passes that it took."""
    text, passes = list(prompt), 0
    drafter.prefill(prompt)
    while len(text) < len(prompt) + count:
        draft = draft_of(drafter, text, budget)
        heard = verdict_on(draft, text, target)
        drafter.observe_draft(len(text), heard, None)
        text += heard.tokens
        passes += 1
    return text[: len(prompt) + count], passes

"""The acceptance rules as functions of plain tensors: what the tests enumerate, sample and break."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specviz.rules.draft import Decision, Draft, TargetRows, Uniforms, chain
from specviz.rules.exact import verify_block, verify_match, verify_multi_path, verify_siblings, verify_token_by_token
from specviz.rules.typical import verify_typical

Verify = Callable[[Draft, TargetRows, Uniforms], Decision]
NOTHING = torch.empty(0)


def judged(
    verify: Verify,
    tokens: Tensor,
    parents: tuple[int, ...],
    draft_probs: Tensor | None,
    target_probs: Tensor,
    coins: Tensor,
    next_u: Tensor,
) -> Decision:
    """The decision about tokens [n] drawn from draft_probs [n, vocab] (None: point masses), by target rows [n + 1,
    vocab] and uniforms [n] and []."""
    draft, rows = Draft(tokens, parents, draft_probs), TargetRows(target_probs.log(), target_probs, None)
    return verify(draft, rows, Uniforms(NOTHING, coins, next_u))


def verify_by_rejection(tokens, draft_probs, target_probs, coins, next_u):
    return judged(verify_token_by_token, tokens, chain(len(tokens)), draft_probs, target_probs, coins, next_u)


def verify_by_block(tokens, draft_probs, target_probs, coins, next_u):
    return judged(verify_block, tokens, chain(len(tokens)), draft_probs, target_probs, coins, next_u)


def verify_by_tree(tokens, parents, draft_probs, target_probs, coins, next_u):
    return judged(verify_siblings, tokens, parents, draft_probs, target_probs, coins, next_u)


def verify_by_multi_path(tokens, parents, draft_probs, target_probs, coins, next_u):
    return judged(verify_multi_path, tokens, parents, draft_probs, target_probs, coins, next_u)


def verify_by_typical(tokens, parents, target_probs, next_u, **constants):
    rows = TargetRows(target_probs.log(), target_probs, None)
    return verify_typical(Draft(tokens, parents), rows, Uniforms(NOTHING, NOTHING, next_u), **constants)


def verify_by_match(tokens, parents, target_choices):
    rows = TargetRows(NOTHING, None, target_choices)
    return verify_match(Draft(tokens, parents), rows, Uniforms(NOTHING, NOTHING, NOTHING))

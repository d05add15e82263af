"""A right solution of the homework. Not for students."""

import numpy as np


def accept(p, q, token, u):
    return bool(u < p[token] / q[token])


def residual(p, q):
    uncovered = np.maximum(0, p - q)
    return uncovered / uncovered.sum() if uncovered.any() else p


def draw(probs, u):
    return int(np.searchsorted(np.cumsum(probs), u, side="right"))


def verify(p, q, tokens, us, u_next):
    for place, token in enumerate(tokens):
        if not accept(p[place], q[place], token, us[place]):
            return place, draw(residual(p[place], q[place]), u_next)
    return len(tokens), draw(p[-1], u_next)


def speculate(target, draft, prompt, num_draft_tokens, max_new_tokens, rng):
    ids, end = list(prompt), len(prompt) + max_new_tokens
    while len(ids) < end:
        tokens, q = [], []
        for _ in range(min(num_draft_tokens, end - len(ids))):
            q.append(draft(ids + tokens)[-1])
            tokens.append(draw(q[-1], rng.random()))
        p = target(ids + tokens)[len(ids) - 1 :]
        us = [rng.random() for _ in tokens]
        accepted, token = verify(p, q, tokens, us, rng.random())
        ids += [*tokens[:accepted], token]
    return ids[len(prompt) : end]

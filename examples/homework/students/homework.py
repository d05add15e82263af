"""Speculative decoding: the four functions of assignment.md."""

import numpy as np


def accept(p: np.ndarray, q: np.ndarray, token: int, u: float) -> bool:
    """Whether a token that was drawn from q passes with the coin u."""
    raise NotImplementedError


def residual(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """The distribution of the token that takes the place of a rejected one."""
    raise NotImplementedError


def verify(p: np.ndarray, q: np.ndarray, tokens: list, us: np.ndarray, u_next: float) -> tuple:
    """How many tokens of a draft pass, and the token that comes next."""
    raise NotImplementedError


def speculate(target, draft, prompt: list, num_draft_tokens: int, max_new_tokens: int, rng) -> list:
    """The new ids."""
    raise NotImplementedError

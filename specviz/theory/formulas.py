"""The predictions of the papers, in closed form: α is the acceptance rate, γ the draft length, c the cost coefficient.

Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding, ICML 2023, arXiv 2211.17192.
All formulas assume that every draft token is accepted independently with the same probability α.
"""


def _check(alpha: float, gamma: int, cost: float = 0.0) -> None:
    if not 0 <= alpha <= 1 or gamma < 0 or cost < 0:
        raise ValueError(f"alpha is a probability, gamma and cost are not negative: {alpha}, {gamma}, {cost}.")


def expected_tokens(alpha: float, gamma: int) -> float:
    """Tokens per target pass: (1 − α^(γ+1)) / (1 − α), eq. 1; γ + 1 at α = 1."""
    _check(alpha, gamma)
    return float(gamma + 1) if alpha == 1 else (1 - alpha ** (gamma + 1)) / (1 - alpha)


def expected_speedup(alpha: float, gamma: int, cost: float) -> float:
    """Wall-time improvement over plain decoding: expected tokens / (γc + 1), Thm 3.8."""
    _check(alpha, gamma, cost)
    return expected_tokens(alpha, gamma) / (gamma * cost + 1)


def optimal_gamma(alpha: float, cost: float, longest: int = 64) -> int:
    """The γ in 0 … `longest` with the best expected speedup; 0 where speculation does not pay (α ≤ c, Cor. 3.9)."""
    return max(range(longest + 1), key=lambda gamma: expected_speedup(alpha, gamma, cost))

"""From logits to the distribution that a token is drawn from, and with a uniform draw to the token.

Target and drafter share these functions, which is half the reason why the output follows the target.
"""

import math

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specviz.records.errors import SpecvizError
from specviz.records.settings import SamplingParams
from specviz.rules.transfer import on_cpu

#: The width from which rows are searched in parts; the most parts, and the fewest that pay.
_WIDE, _PARTS, _FEWEST_PARTS = 16_384, 256, 16


def require_numbers(largest: float, drafted: bool = False) -> None:
    """Raises SpecvizError (field ``dtype``) if the largest of the target's logits or probabilities is not a number: the
    text would continue without meaning. A NaN counts as the largest; a token may be ruled out by minus infinity.

    drafted: they are the drafter's. The text would be right, but the draft's figures would be wrong.
    """
    if not largest < math.inf and drafted:
        raise SpecvizError(
            "The drafter produced NaN or infinite logits: it overflows in this precision, or its weights are "
            "damaged. Try float32 or another drafter.",
            "dtype",
        )
    if not largest < math.inf:
        raise SpecvizError(
            "The target produced NaN or infinite logits: it overflows in this precision, or its weights are "
            "damaged. Try float32.",
            "dtype",
        )


class Warper:
    """Logits to probabilities under one SamplingParams.

    The filters are transformers' own, in the order `generate` applies them (temperature, top-k, top-p, min-p), so
    plain decoding follows the same distribution as `generate`. Greedy is the limit: all mass on the first largest
    logit.
    """

    def __init__(self, params: SamplingParams):
        self.params = params
        self.filters = LogitsProcessorList()
        if params.greedy:
            return
        if params.temperature != 1:
            self.filters.append(TemperatureLogitsWarper(float(params.temperature)))
        if params.top_k > 0:
            self.filters.append(TopKLogitsWarper(int(params.top_k)))
        if params.top_p < 1:
            self.filters.append(SortedTopP(float(params.top_p)))
        if params.min_p > 0:
            self.filters.append(MinPLogitsWarper(float(params.min_p)))

    @property
    def changes_logits(self) -> bool:
        """False where the warped distribution is the model's own softmax."""
        return self.params.greedy or bool(self.filters)

    @property
    def temperature_alone(self) -> float | None:
        """The temperature, if nothing else changes the distribution; 0 if greedy."""
        if self.params.greedy:
            return 0.0
        unfiltered = all(isinstance(filter_, TemperatureLogitsWarper) for filter_ in self.filters)
        return float(self.params.temperature) if unfiltered else None

    def probabilities(self, logits: Tensor) -> Tensor:
        """float32 probabilities [rows, vocab] from logits [rows, vocab] of any float type."""
        logits = logits.float()
        if self.params.greedy:
            return torch.zeros_like(logits).scatter_(-1, first_largest(logits).unsqueeze(-1), 1.0)
        for filter_ in self.filters:
            logits = filter_(None, logits)
        return logits.softmax(-1)


class SortedTopP(TopPLogitsWarper):
    """transformers' top-p filter, keeping the same logits in a fifth of the time on a CPU.

    torch sorts logits with their ids, a row of 4096 in 150 µs; NumPy sorts the logits alone in 8 µs. That is enough to
    find the smallest logit that stays.
    """

    def __call__(self, input_ids: Tensor | None, scores: Tensor) -> Tensor:
        if not on_cpu(scores):
            return super().__call__(input_ids, scores)
        ascending = torch.from_numpy(np.sort(scores.numpy(), axis=-1))
        mass = ascending.softmax(-1).cumsum(-1)
        enough = mass.new_full((len(mass), 1), 1 - self.top_p)
        # How many go; never the likeliest.
        dropped = torch.searchsorted(mass, enough, right=True).clamp_max_(mass.shape[-1] - 1)
        least = ascending.gather(-1, dropped)
        removed = scores < least
        if (ascending.gather(-1, (dropped - 1).clamp_min_(0)) == least).any():
            # Logits tie at the edge, as they often do in half precision: the smallest ids go.
            equal = scores == least
            removed |= equal & (equal.cumsum(-1) <= dropped - removed.sum(-1, keepdim=True))
        return scores.masked_fill(removed, self.filter_value)


def first_largest(logits: Tensor) -> Tensor:
    """argmax of float32 logits [rows, vocab]: int64 [rows], the first of any ties."""
    if on_cpu(logits):
        # NumPy's search is vectorised and torch's is not: 2 µs instead of 29 for five rows of 4096.
        return torch.from_numpy(logits.numpy().argmax(-1))
    return _first_largest_in_parts(logits)


def draw(probs: Tensor, u: Tensor) -> Tensor:
    """Inverse-CDF draw: the first token whose cumulative probability exceeds u.

    probs: [..., vocab], float32, summing to about 1 (the sum is divided out). u: a scalar, or [..., 1] for one draw a
    row: float32 values in [0, 1), held as float64. Returns token ids [...], int64.

    Never draws a token of probability 0: the sums are in float64, where u · total < total for every float32 u < 1, and
    a token without mass does not raise them. From rows with a NaN it draws some token.
    """
    return draw_with_sums(probs, u)[0]


def draw_with_sums(probs: Tensor, u: Tensor) -> tuple[Tensor, Tensor]:
    """`draw`, with the running sums [..., vocab], float64, in which it looked up u times the last one."""
    cumulative = probs.cumsum(-1, dtype=torch.float64)
    threshold = u * cumulative[..., -1:]
    if on_cpu(probs):
        tokens = torch.searchsorted(cumulative, threshold, right=True).squeeze(-1)
        return tokens.clamp_max_(probs.shape[-1] - 1), cumulative
    return _first_above(cumulative, threshold, probs), cumulative


def _first_above(cumulative: Tensor, threshold: Tensor, probs: Tensor) -> Tensor:
    """The search in sums computed in parallel, which may rise over a stretch without mass: checks the mass as well."""
    passed = torch.logical_and(cumulative > threshold, probs)
    return _first_largest_in_parts(passed.view(torch.uint8))


def _first_largest_in_parts(rows: Tensor) -> Tensor:
    """argmax of rows [..., width], the first of any ties: of parts, and then among these.

    A GPU has one block of threads look through a row: 28 µs for 128,256 cells on an H100, however few rows there are.
    """
    width = rows.shape[-1]
    parts = math.gcd(width, _PARTS)
    if width < _WIDE or parts < _FEWEST_PARTS:
        return rows.argmax(-1)
    cells = rows.unflatten(-1, (parts, width // parts))
    places = cells.argmax(-1, keepdim=True)
    part = cells.gather(-1, places).squeeze(-1).argmax(-1, keepdim=True)
    return (part * (width // parts) + places.squeeze(-1).gather(-1, part)).squeeze(-1)


def fit_width(logits: Tensor, vocab_size: int) -> Tensor:
    """A drafter's logits [rows, any width] at the target's width.

    Checkpoints of one tokenizer are padded to different widths. Ids that the target lacks cannot be proposed; ids
    that the drafter lacks get probability 0.
    """
    width = logits.shape[-1]
    if width > vocab_size:
        return logits[..., :vocab_size]
    if width < vocab_size:
        return torch.nn.functional.pad(logits, (0, vocab_size - width), value=float("-inf"))
    return logits


def in_order(logits: Tensor, columns: Tensor) -> Tensor:
    """A drafter's logits [rows, width] for the tokens of another vocabulary, [rows, vocab].

    columns: [vocab] int64, where each token's logit stands; `width` for tokens without one, which get −∞.
    """
    return torch.nn.functional.pad(logits, (0, 1), value=float("-inf")).index_select(-1, columns)

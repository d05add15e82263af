"""What a recovered token comes from if it is drawn with the noise that drew the draft: vLLM's fault until #54282."""

import numpy
from numpy.typing import NDArray


def residual_under_shared_noise(p: NDArray[numpy.float64], q: NDArray[numpy.float64]) -> NDArray[numpy.float64]:
    """The distribution [vocab] of a recovered token, by the target's p and the drafter's q; p where nothing is left.

    A draw is a race: token x arrives at time E_x/q_x with independent exponential E_x, and the first one wins (as the
    largest of log q + Gumbel noise does). The draft's winner came at some time t, exponential with rate 1 whoever it
    was, so E_x > q_x·t for all others, and what is left of E_x is exponential again. In the second race, for the
    residual r = max(0, p − q), a token so runs from q_x·t/r_x on: the favourites of q start late. Between two starts
    in order of a = q/r, with R and Q the sums of r and q of those that run, each wins by its share r/R with

        P(the race ends there) = 1/(1 + R·a − Q) − 1/(1 + R·a' − Q),   t integrated out.
    """
    rest = numpy.maximum(p - q, 0)
    left = numpy.flatnonzero(rest)
    if not len(left):
        return p
    left = left[numpy.argsort(q[left] / rest[left])]
    starts, running, drafted = q[left] / rest[left], rest[left].cumsum(), q[left].cumsum()
    ends = 1 / (1 + running * starts - drafted)
    ends[:-1] -= 1 / (1 + running[:-1] * starts[1:] - drafted[:-1])
    shares = numpy.zeros_like(p)
    shares[left] = rest[left] * (ends / running)[::-1].cumsum()[::-1]
    return shares

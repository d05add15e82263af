"""What follows of the passes that reached a position where some drafts were short, and nobody says which.

A pass that accepted k tokens reached position k + 1 unless its draft ended there. Every draft that ended early lacks
tokens, and how many are lacking in all is known: the drafted tokens, and γ tokens of every pass.
"""

from collections.abc import Sequence

#: How many passes reached a position, at least and at most.
Between = tuple[int, int]


def reached(ended: Sequence[int], drafted: int) -> tuple[list[Between], Between]:
    """Bounds for each position, and for the sum over all of them, which is smaller than the sum of the bounds.

    ended: [j], passes that accepted j draft tokens, for j from 0 to γ; each drafted at least one. drafted: tokens of
    all passes.
    """
    gamma, lacking = len(ended) - 1, (len(ended) - 1) * sum(ended) - drafted
    most = [sum(ended[place:]) for place in range(gamma)]
    by_position = [
        (count - (min(ended[place], lacking // (gamma - place)) if place else 0), count)
        for place, count in enumerate(most)
    ]
    short = 0
    for place in range(gamma - 1, 0, -1):  # the deepest lack least
        here = min(ended[place], lacking // (gamma - place))
        short, lacking = short + here, lacking - here * (gamma - place)
    return by_position, (sum(most) - short, sum(most))

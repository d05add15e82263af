"""Drafts as trees. `parents` has for each draft token the place of the one that it continues, −1 for the committed
text; parents stand before their children, siblings in the order in which they are tried."""

from collections.abc import Sequence

from specviz.records.runs import Outcome


def depths_of(parents: Sequence[int]) -> list[int]:
    """The draft position of each token, 0 for those that continue the committed text."""
    depths: list[int] = []
    for parent in parents:
        depths.append(depths[parent] + 1 if parent >= 0 else 0)
    return depths


def children_of(parents: Sequence[int]) -> list[list[int]]:
    """First the tokens that continue the committed text, then those that continue each draft token."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for token, parent in enumerate(parents):
        children[parent + 1].append(token)
    return children


def outcomes_of(parents: Sequence[int], accepted: Sequence[bool], tried: Sequence[bool] = ()) -> list[Outcome]:
    """What became of each token. Rejected: it continues accepted text, and no earlier sibling was accepted.

    tried: the tokens that the rule looked at, where it says so.
    """
    outcomes: list[Outcome] = []
    continued = set()
    for token, parent in enumerate(parents):
        if accepted[token]:
            outcomes.append("accepted")
            continued.add(parent)
        else:
            judged = (parent < 0 or accepted[parent]) and parent not in continued and (not tried or tried[token])
            outcomes.append("rejected" if judged else "discarded")
    return outcomes

"""The acceptance rules, and what is known of each without its function, which `specviz.rules` finds by this table.

Loads no torch: help texts, links, recorded runs and the page need it before torch is there.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RuleFacts:
    """A row: where the rule is, its words in English, and what it can judge."""

    place: str  # of its `Rule` in `specviz.rules`: module and name
    title: str
    about: str  # a sentence; German is optional: ``rule_NAME`` and ``rule_NAME_about`` in assets/text/de/ways.json
    lossless: bool = True  # the output follows the target's distribution, whatever the drafter
    trees: bool = True  # can judge siblings; otherwise chains only
    paths: bool = False  # siblings must be whole paths, each drawn without regard to the others
    #: Whose pictures and sentences suit it: one coin after another until one rejects; all coins, then one decision; no
    #: coin at all.
    draws_like: Literal["token", "block", "typical"] = "token"


#: By the names that users type.
RULES: dict[str, RuleFacts] = {
    "token": RuleFacts(
        "exact.TOKEN",
        "Token by token",
        "A draft token passes with probability min(1, p/q); the first rejection ends the round.",
        trees=False,
    ),
    "block": RuleFacts(
        "exact.BLOCK",
        "Block verification",
        "Judges a whole chain at once and accepts as much as possible: on average never less than token by token.",
        trees=False,
        draws_like="block",
    ),
    "tree": RuleFacts(
        "exact.TREE",
        "Tree",
        "Tries siblings in turn, each against the part of the target's probability that the earlier siblings left.",
    ),
    "multi_path": RuleFacts(
        "exact.MULTI_PATH",
        "Multi-path block",
        "Draws whole paths, picks the most promising one and judges it as a block. Often accepts more than siblings "
        "tried in turn; if target and drafter nearly agree, fewer.",
        paths=True,
        draws_like="block",
    ),
    "typical": RuleFacts(
        "typical.TYPICAL",
        "Typical (lossy)",
        "Accepts what the target finds plausible enough. Each round shows its distance from the target's distribution.",
        lossless=False,
        draws_like="typical",
    ),
}


def usual_rule(makes_trees: bool) -> str:
    """The rule that ``auto`` stands for: token by token for chains, sibling by sibling for trees."""
    return "tree" if makes_trees else "token"


#: The others, which have to be asked for.
UNUSUAL = tuple(name for name in RULES if name not in {usual_rule(makes_trees) for makes_trees in (False, True)})

#: What the Lossless lab tests (`specviz.decoding.lossless`): the usual rule and the other right ones, then those that
#: are wrong on purpose or lossy, then those that engines offer, and those that engines shipped without knowing it.
LAB_RULES = (
    *("auto", *(name for name in UNUSUAL if RULES[name].lossless), "greedy_drafts"),
    *("everything", "likeliest", *(name for name in UNUSUAL if not RULES[name].lossless), "mislabelled", "stale_state"),
    *("sglang", "trtllm", "fly", "p_min", "confidence_cut"),
    *("shared_noise", "two_precisions", "mixed_rows", "n_min"),
)

#: The lab's rule ``likeliest`` takes whatever is among this many of the target's likeliest tokens.
LIKELIEST = 3

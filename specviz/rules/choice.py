"""The acceptance rules by name, and which of them fit a draft: the rule is chosen apart from the drafter."""

from __future__ import annotations

from dataclasses import dataclass

from specviz.records.errors import SpecvizError


@dataclass(frozen=True, slots=True)
class Rule:
    """An acceptance rule. lossless: the output follows the target's law. trees: it can judge siblings."""

    name: str
    title: str
    lossless: bool
    trees: bool


_RULES = (
    Rule("token", "Token by token (rejection sampling)", lossless=True, trees=False),
    Rule("block", "Block verification", lossless=True, trees=False),
    Rule("tree", "Tree, sibling by sibling", lossless=True, trees=True),
    Rule("typical", "Typical acceptance (lossy)", lossless=False, trees=True),
)

#: Every rule that can be asked for by name.
RULES: tuple[str, ...] = tuple(rule.name for rule in _RULES)


def rule_named(name: str) -> Rule:
    """The rule of this name. Raises SpecvizError (field ``rule``) if there is none."""
    for rule in _RULES:
        if rule.name == name:
            return rule
    raise SpecvizError(
        "There is no rule {name}; choose from auto, {names}.", "rule", name=repr(name), names=", ".join(RULES)
    )


def choose_rule(name: str, drafter: str, makes_trees: bool) -> str:
    """The rule's name, ``auto`` resolved: token by token for chains, sibling by sibling for trees.

    Raises SpecvizError (field ``rule``) for a rule that cannot judge this drafter's drafts.
    """
    if name == "auto":
        return "tree" if makes_trees else "token"
    if rule_named(name).trees or not makes_trees:
        return name
    if name == "token":
        raise SpecvizError(
            "Token by token (rejection sampling) judges one token after the other and knows no siblings, and {drafter} "
            "drafts a tree here: set branches to 1 or choose the tree rule.",
            "rule",
            drafter=drafter,
        )
    raise SpecvizError(
        "Block verification weighs a whole chain at once and is not defined for siblings, and {drafter} drafts a tree "
        "here: set branches to 1 or choose the tree rule.",
        "rule",
        drafter=drafter,
    )

"""From logits to distributions and tokens, and the acceptance rules: which draft tokens are accepted.

sampling  logits -> the distribution a token is drawn from -> a token
draft     a Draft, its TargetRows and Uniforms; the Rule that judges it; its Decision and the Verdict
exact     the lossless rules: token by token, block, siblings, multi-path; at temperature 0 all become one
typical   accepts tokens that are likely enough: lossy
grammar   which tokens may follow a text; all others are masked, for p and q alike
transfer  from the host to a device, without waiting for it, and back

New rules are registered in `records/rules.py`.
"""

from importlib import import_module

from specviz.records import rules
from specviz.records.errors import SpecvizError, quoted
from specviz.rules.draft import Rule

#: The names of all rules.
RULES: tuple[str, ...] = tuple(rules.RULES)


def rule_named(name: str) -> Rule:
    """The rule with this name. Raises SpecvizError (field ``rule``) if there is none."""
    if name not in RULES:
        raise SpecvizError(
            "There is no rule {name}; choose from auto, {names}.", "rule", name=quoted(name), names=", ".join(RULES)
        )
    module, _, place = rules.RULES[name].place.partition(".")
    return getattr(import_module(f"specviz.rules.{module}"), place)


def choose_rule(name: str, drafter: str | None, makes_trees: bool, draws_paths: bool) -> Rule:
    """The rule with this name, ``auto`` resolved. draws_paths: the drafter can draw whole paths.

    Raises SpecvizError (field ``rule``) for a rule that cannot judge this drafter's drafts.
    """
    rule = rule_named(rules.usual_rule(makes_trees) if name == "auto" else name)
    if makes_trees and not rule.trees:
        raise SpecvizError(
            "The rule {rule} judges chains only, and {drafter} drafts a tree here: set branches to 1 or choose the "
            "tree rule.",
            "rule",
            rule=rule.name,
            drafter=drafter,
        )
    if makes_trees and rule.paths and not draws_paths:
        raise SpecvizError(
            "The rule {rule} picks among drawn paths, but {drafter} does not draw its tokens: choose another rule.",
            "rule",
            rule=rule.name,
            drafter=drafter,
        )
    return rule

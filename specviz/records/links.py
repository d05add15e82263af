"""A run's settings as the query string of a link, and back, so that a page can repeat the run.

A link carries no models: the page it leads to uses its own pair.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any
from urllib.parse import quote, urlencode

from specviz.records.errors import SpecvizError, shortened
from specviz.records.rules import usual_rule
from specviz.records.runs import Run
from specviz.records.settings import DRAFTING, MAX_SEED, PLAIN, SETTINGS

#: Always stated in a link: pages have their own values for these.
ALWAYS_STATED = ("prompt", "drafter", "num_draft_tokens", "temperature", "max_new_tokens", "seed")

#: Left out of a link at these values: on every page they mean that nothing was asked for.
DEFAULTS: dict[str, Any] = {name: row.default for name, row in SETTINGS.items() if name not in ALWAYS_STATED}

#: Servers refuse request lines of about 64 KB; links stop being pasteable long before that.
MOST_CHARACTERS = 8000

_DRAFTING = [(name, SETTINGS[name]) for name in DRAFTING]

_YES_AND_NO = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def query(settings: Mapping[str, Any]) -> str:
    """``name=value&…`` for settings by their names in `SETTINGS`; leaves out defaults and None."""
    stated = (name for name in SETTINGS if name in settings and settings[name] != DEFAULTS.get(name))
    return urlencode({name: _parameter(settings[name]) for name in stated}, quote_via=quote, errors="replace")


def settings_of(parameters: Mapping[str, str]) -> tuple[dict[str, Any], list[SpecvizError]]:
    """The settings that a link's decoded parameters ask for, and the errors in the others.

    Ignores parameters that are not settings. Those of `DEFAULTS` that the link leaves out take their default; a link
    that names no setting at all sets nothing.
    """
    settings, errors = {}, []
    for name in SETTINGS:
        if name not in parameters:
            continue
        try:
            settings[name] = _read(name, parameters[name])
        except SpecvizError as error:
            errors.append(error)
    named = {error.field for error in errors}
    missing = {name: value for name, value in DEFAULTS.items() if name not in named} if settings or errors else {}
    return missing | settings, errors


def settings_of_run(run: Run) -> dict[str, Any]:
    """The settings that the run was made with, without models and stop strings."""
    settings: dict[str, Any] = {
        "prompt": run.prompt.text if run.prompt.message is None else run.prompt.message,
        "chat": run.prompt.message is not None,
        "drafter": run.drafter or PLAIN,
        "max_new_tokens": run.max_new_tokens,
        "seed": run.seed,
        "coins": run.coins,
        "grammar": run.grammar,
        **asdict(run.sampling),
    }
    if run.drafter is None:
        return settings
    # Lookahead's branches are the n-grams it tries.
    own = {"branches": run.settings.get("guesses")} | run.settings
    # Files of other programs may have anything there.
    drafting = {name: own[name] if name in own and row.allows(own[name]) else row.default for name, row in _DRAFTING}
    branches = drafting["branches"]
    usual = usual_rule(makes_trees=isinstance(branches, int) and branches > 1)
    rule = "auto" if run.rule == usual else run.rule
    return settings | {"num_draft_tokens": run.num_draft_tokens, "rule": rule} | drafting


def share(run: Run) -> dict[str, Any]:
    """The values with which the page shares a run.

    file: the name of its files, without extension. pair: the pair's name.
    settings: the run's; None with a seed that no page can hold: files of other programs may have one.
    query: of the link that repeats it; None without settings, or if it would be too long.
    """
    settings = settings_of_run(run)
    link, repeatable = query(settings), 0 <= run.seed <= MAX_SEED
    return {
        "file": file_stem(run),
        "pair": run.pair.name,
        "settings": settings if repeatable else None,
        "query": link if repeatable and len(link) <= MOST_CHARACTERS else None,
    }


def file_stem(run: Run) -> str:
    """A name for the run's files, sanitised: the drafter's name may come from a file that a visitor opened."""
    drafter = re.sub(r"[^A-Za-z0-9_]", "_", run.drafter or PLAIN)[:40]
    return f"specviz-{drafter}-seed{run.seed}"


def _parameter(value: Any) -> str:
    as_whole_number = isinstance(value, bool) or (isinstance(value, float) and value == int(value))
    return str(int(value) if as_whole_number else value)


def _read(name: str, text: str) -> Any:
    row = SETTINGS[name]
    if row.kind is str or text in row.choices:
        return text
    if row.kind is bool:
        if text.lower() not in _YES_AND_NO:
            raise SpecvizError(
                "The link says {name}={value}, but it must be 1 or 0.", name, name=name, value=shortened(text)
            )
        return _YES_AND_NO[text.lower()]
    if row.kind is int:
        if not re.fullmatch(r"-?[0-9]{1,16}", text) or abs(int(text)) > MAX_SEED:
            raise SpecvizError(
                "The link says {name}={value}, but that is not a whole number that this page can hold.",
                name,
                name=name,
                value=shortened(text),
            )
        return int(text)
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise SpecvizError(
            "The link says {name}={value}, but that is not a number.", name, name=name, value=shortened(text)
        )
    return value

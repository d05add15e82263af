"""Coins set by hand: a run repeated with everything as it was, but for some of its uniforms.

Written ``ROUND.TOKEN=U``, several with spaces between them; rounds and tokens count from 1, as on the page. The coin
that judges the second draft token of round 3 is ``3.2=0.41``, the draw of the token that ends round 5 ``5.next=0.07``.
"""

import re
from dataclasses import dataclass

from specviz.records.errors import SpecvizError, quoted

_COIN = re.compile(r"([1-9]\d{0,6})\.(next|[1-9]\d{0,3})=(\d*\.?\d+(?:[eE]-?\d{1,3})?)")

#: More than people set by hand; a link could bring any number.
_MOST = 64

#: Everything below this stays below 1 as a float32.
_BELOW = 1 - 2**-25


@dataclass(frozen=True, slots=True)
class SetCoin:
    """One uniform and its value."""

    round: int  # counted from 0
    token: int | None  # the draft token that the coin judges, counted from 0; None: the draw of the round's own token
    u: float  # in [0, 1)


def read_coins(text: str) -> tuple[SetCoin, ...]:
    """The coins that `text` sets. Raises SpecvizError (field ``coins``) for a text in another form."""
    if not isinstance(text, str):
        raise SpecvizError("{name} must be a name, not {value}.", "coins", name="coins", value=quoted(text))
    words = text.split()
    if len(words) > _MOST:
        raise SpecvizError("At most {most} coins can be set by hand.", "coins", most=_MOST)
    return tuple(map(_read, words))


def _read(word: str) -> SetCoin:
    found = _COIN.fullmatch(word)
    # A coin is a float32, and the nearest one to 0.99999999 is 1.
    if found is None or not float(found[3]) < _BELOW:
        raise SpecvizError(
            "A coin is set as ROUND.TOKEN=U with U from 0 to below 1, such as 3.2=0.41 or 5.next=0.07; got {value}.",
            "coins",
            value=quoted(word),
        )
    return SetCoin(int(found[1]) - 1, None if found[2] == "next" else int(found[2]) - 1, float(found[3]))

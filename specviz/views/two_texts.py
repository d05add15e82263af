"""Two greedy texts that should be equal, and what the target says of the token at which they part, in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specviz.records.words import Words

if TYPE_CHECKING:
    from specviz.bench.two_texts import Parting


def parting_lines(found: Parting | None, names: tuple[str, str], say: Words) -> list[str]:
    """The verdict, then what it rests on. names: of the two texts."""
    if found is None:
        return [say("two_texts.same")]
    off = [name for name, wrong in zip(names, found.wrong) if wrong]
    ends = [name for name, side in zip(names, found.sides) if not side.token and side.gap > found.tolerance]
    kind = "wrong" if len(off) == 1 else "both_wrong" if off else "ends" if ends else "near"
    lines = [
        say(f"two_texts.{kind}", name=(off or ends or names)[0]),
        say("two_texts.parts", place=found.place, before=repr(found.before)),
    ]
    for name, side in zip(names, found.sides):
        kind = "side_ends" if not side.token else "side" if side.gap else "side_best"
        lines.append(say(f"two_texts.{kind}", name=name, token=repr(side.token), gap=side.gap))
    for name, side in zip(names, found.sides):
        if side.gap <= found.tolerance and side.later is not None:
            place, gap = side.later
            lines.append(say("two_texts.later", name=name, n=place, gap=gap))
    lines.append(say("two_texts.rounding", dtype=found.dtype, step=found.step, tolerance=found.tolerance))
    return lines

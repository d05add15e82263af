"""The roles by which a pair keeps its passes: whose they are, and for several of one kind, which."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Role:
    """What reads in a pass. Printed as ``target``, ``exit 2``, ``mtp 2``."""

    kind: str  # ``target``, ``draft``, ``exit``, ``quantised``, or the drafter of a trained part
    number: int = 0  # the layers before an exit, a quantised target's bits, the place of a part's later head, from 2

    def __str__(self) -> str:
        return f"{self.kind} {self.number}" if self.number else self.kind

    @classmethod
    def exit(cls, layers: int) -> Role:
        """Of the target, left after so many layers."""
        return cls("exit", layers)

    @classmethod
    def quantised(cls, bits: int) -> Role:
        """Of the target with its weights in so many bits."""
        return cls("quantised", bits)

    @property
    def is_model(self) -> bool:
        """True for target and draft model, whose passes are handed to a pair together."""
        return self in (TARGET, DRAFT)

    @property
    def drafts_in_steps(self) -> bool:
        """True for passes that draft token after token, each on the last one."""
        return self.kind == "exit" or self in _IN_STEPS


TARGET, DRAFT = Role("target"), Role("draft")
_IN_STEPS = (DRAFT, Role("eagle"), Role("mtp"))

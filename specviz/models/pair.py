"""A target, a draft model and their tokenizer: the pair that speculation runs on.

A pair knows what its models share (vocabulary, context, end tokens, device, dtype) and reads prompts.
"""

from __future__ import annotations

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from specviz.models.pair_passes import PairPasses, Preparation
from specviz.models.placement import dtype_name, release_memory
from specviz.models.preparation import prepare_passes
from specviz.models.sources import Progress
from specviz.models.token_texts import TokenTexts
from specviz.models.vocabularies import Translation
from specviz.parts.published import logit_width
from specviz.parts.reading import TrainedPart
from specviz.passes.devices import devices_of, home_of
from specviz.passes.fast_passes import FastPasses, kind_of
from specviz.passes.positions import mask_switch, position_limit, rope_switch
from specviz.passes.roles import Role
from specviz.passes.zero_gpu import is_lent
from specviz.records.errors import SpecvizError, first_line, quoted
from specviz.records.prompts import require_readable, token_ids
from specviz.records.runs import PairInfo, Prompt
from specviz.records.settings import SamplingParams


@dataclass(eq=False)
class ModelPair:
    """Two models, ready to run."""

    target: PreTrainedModel
    draft: PreTrainedModel | None  # None where only drafters without a model are wanted
    tokenizer: PreTrainedTokenizerBase  # the target's
    name: str
    texts: TokenTexts
    device: torch.device  # where tokens go in and logits come out
    place: str  # where the target runs, for people; kept, since a lent GPU is not there to be asked
    dtype: torch.dtype
    vocab_size: int  # width of the target's logits; may exceed the tokenizer's vocabulary and differ from the draft's
    context_length: int | None  # positions that the target has; None: no limit. A draft's own only end its drafting
    eos_ids: frozenset[int]  # tokens that end a text
    target_name: str
    draft_name: str | None
    translation: Translation | None = None  # between the draft's tokens and the target's; None if they share them
    draft_columns: torch.Tensor | None = None  # see `keep_frequent`; None if the draft's head knows all of its tokens
    parts: dict[str, TrainedPart] = field(default_factory=dict)  # by the names of their drafters
    flaws: dict[str, SpecvizError] = field(default_factory=dict)  # why a part in the target's folder is unusable
    passes: PairPasses = field(default_factory=PairPasses)  # measured and prepared on this machine
    #: By role, how weights that were unpacked are stored: ``Q4_1`` in a GGUF file.
    stored: dict[str, str] = field(default_factory=dict)
    recommended: SamplingParams | None = None  # by the target's files, for people to choose

    @classmethod
    def of(
        cls,
        target: PreTrainedModel,
        draft: PreTrainedModel | None,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str | None = None,
        target_name: str = "target",
        draft_name: str = "draft",
        **further_fields: Any,
    ) -> ModelPair:
        """A pair of models already in memory, the draft on the device where the target begins. Checks nothing.

        further_fields: those from `translation` on; None is the default.
        """
        vocab_size = logit_width(target)
        return cls(
            target=target,
            draft=draft,
            tokenizer=tokenizer,
            name=name or (target_name if draft is None else f"{target_name} + {draft_name}"),
            texts=TokenTexts(tokenizer),
            device=home_of(target),
            place=", ".join(devices_of(target)),
            dtype=target.dtype,
            vocab_size=vocab_size,
            context_length=position_limit(target),
            eos_ids=_eos_ids(target, tokenizer, vocab_size),
            target_name=target_name,
            draft_name=None if draft is None else draft_name,
            **{field: value for field, value in further_fields.items() if value is not None},
        )

    @property
    def lent(self) -> bool:
        """True if the GPU is there only during a call (`is_lent`)."""
        return is_lent(self.device.type)

    @property
    def has_chat_template(self) -> bool:
        return bool(self.tokenizer.chat_template)

    def info(self, passes: Mapping[Role, FastPasses] | None = None) -> PairInfo:
        """Names and sizes for the record of a run. passes: those the run uses; None: those ready now."""
        return PairInfo(
            name=self.name,
            target=self.target_name,
            target_parameters=self.target.num_parameters(),
            draft=self.draft_name,
            draft_parameters=None if self.draft is None else self.draft.num_parameters(),
            device=self.place,
            dtype=dtype_name(self.dtype),
            passes=self.passes.kind if passes is None else kind_of(passes),
            vocab_size=self.vocab_size,
        )

    def prepare(self, progress: Progress | None = None) -> Preparation:
        """Makes the passes of later runs several times as fast: compiled on a CPU, recorded as graphs on a GPU.

        Compiling takes a minute or two, once on a machine for models of this shape; `load_pair` takes what was compiled
        before. A second call has nothing to do. Call it between runs. It raises nothing for passes that cannot be
        prepared, as without a C++ compiler: they stay as they are, and the result says why.

        progress: called with the fraction done, in [0, 1], and a sentence.
        """
        if not self.passes.prepared.complete:
            prepare_passes(self, progress or (lambda fraction, sentence: None))
        return self.passes.prepared

    def encode(self, prompt: str | Sequence[int], chat: bool = False) -> Prompt:
        """The prompt as the models read it.

        prompt: text, encoded with the special tokens that the tokenizer puts in front of it, or token ids (list, tuple,
            1-D tensor). Tokens that a tokenizer appends, an end token or ``[SEP]``, are left out: the text goes on.
            Those that it puts in front are not repeated where the text begins with them, as from a chat template.
        chat: fill the text into the tokenizer's chat template, as a user's turn awaiting an answer.

        Raises SpecvizError (field ``prompt`` or ``chat``) if it is empty, is not valid text or token ids, or leaves no
        room in the context for a single new token.
        """
        if not isinstance(prompt, str):
            if chat:
                raise SpecvizError("The chat template takes a text, not token ids.", "chat")
            ids = self._checked_ids(prompt)
            text = self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False)
        else:
            require_readable(prompt)
            if chat:
                self._check_not_filled_in(prompt)
            text = self._filled_in([{"role": "user", "content": prompt}]) if chat else prompt
            ids = self._tokenise(text, add_special_tokens=not chat)
        self._check_room(len(ids))
        return Prompt(text, ids, prompt if chat and isinstance(prompt, str) else None)

    def conversation(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Token ids of a conversation in the chat template, awaiting an answer.

        messages: turns with ``role`` and ``content``. Raises SpecvizError (field ``chat``) if it cannot be filled in.
        """
        if not isinstance(messages, (list, tuple)) or not all(isinstance(one, Mapping) for one in messages):
            raise SpecvizError(
                "A conversation is a list of messages with role and content, not {value}.",
                "chat",
                value=quoted(messages),
            )
        return self._tokenise(self._filled_in([dict(message) for message in messages]), add_special_tokens=False)

    def missing_part(self, name: str) -> SpecvizError:
        """Why the trained part of this name cannot draft here, and what to do about it."""
        if name in self.flaws:
            return self.flaws[name].at("drafter")
        folder = _from_here(self.target.name_or_path) or "FOLDER"
        facts = {"target": self.target_name, "part": name, "folder": folder}
        if folder != "FOLDER" and not pathlib.Path(folder).is_dir():  # a file, or on the Hub: nothing can lie inside it
            return SpecvizError(
                "{target} has no trained {part} part: train one with "
                "python -m specviz.training {part} --target {folder} --text FILE --out FOLDER "
                "and name that folder as a draft, or choose another drafter.",
                "drafter",
                **facts,
            )
        return SpecvizError(
            "{target} has no trained {part} part: train one with "
            "python -m specviz.training {part} --target {folder} --text FILE, or choose another drafter.",
            "drafter",
            **facts,
        )

    def free(self) -> None:
        """Gives up all models and the memory they hold. The pair cannot be used afterwards."""
        self.target = self.draft = None
        self.parts = {}
        for passes in (*self.passes.fast.values(), *(quantised.passes for quantised in self.passes.quantised.values())):
            # The records of past runs hold them too.
            if passes is not None:
                passes.free()
        self.passes.fast, self.passes.quantised = {}, {}
        release_memory()

    def _tokenise(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        # verbose=False: the tokenizer would warn about long texts, which are refused below anyway.
        bare, ids = (
            self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
            for special in (False, add_special_tokens)
        )
        # Special tokens alone are not a prompt: even an empty text has them.
        if not bare:
            raise SpecvizError("Write a prompt first: this one contains no token to start from.", "prompt")
        ends = (end for end in range(len(bare), len(ids) + 1) if ids[end - len(bare) : end] == bare)
        ids = ids[: next(ends, len(ids))]
        front = ids[: len(ids) - len(bare)]
        if front and bare[: len(front)] == front and set(front) <= set(self.tokenizer.all_special_ids):
            ids = bare
        # A tokenizer may have gained tokens that the model has no rows for.
        return self._checked_ids(ids)

    def _check_not_filled_in(self, prompt: str) -> None:
        """Raises SpecvizError (field ``chat``) for a prompt that begins as the template begins a user's turn."""
        turn = "turn"
        before = self._filled_in([{"role": "user", "content": turn}]).partition(turn)[0]
        special = [str(token) for token in self.tokenizer.added_tokens_decoder.values() if token.special]
        openings = [token for token in special if token in before] or [before.strip()]
        for opening in filter(None, openings):
            if prompt.lstrip().startswith(opening):
                raise SpecvizError(
                    "The prompt has been through the chat template already: it begins with {opening}. Turn the "
                    "template off to continue the prompt as it is.",
                    "chat",
                    opening=quoted(opening),
                )

    def _filled_in(self, turns: list[dict[str, str]]) -> str:
        if not self.has_chat_template:
            raise SpecvizError(
                "{name} has no chat template: turn it off, and the prompt is continued as it is.",
                "chat",
                name=self.target_name,
            )
        # Some templates want a turn in parts, as they have it for pictures, and show nothing of a plain text.
        in_parts = [turn | {"content": [{"type": "text", "text": turn.get("content")}]} for turn in turns]
        content = turns[-1].get("content") if turns else None
        prompt = content.strip() if isinstance(content, str) else ""  # the template alone knows how to fill in parts
        failures = []
        for messages in (turns, in_parts):
            try:
                text = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
            except Exception as error:
                # A template is a program of the checkpoint's, and may raise anything.
                failures.append(error)
                continue
            if prompt in text:
                return text
        if failures:
            raise SpecvizError(
                "The chat template of {name} cannot be filled in: {reason}.",
                "chat",
                name=self.target_name,
                reason=first_line(failures[0]),
            ) from failures[0]
        raise SpecvizError(
            "The chat template of {name} leaves the prompt out: turn it off, and the prompt is continued as it is.",
            "chat",
            name=self.target_name,
        )

    def _checked_ids(self, prompt: Any) -> tuple[int, ...]:
        ids = token_ids(prompt)
        for token_id in ids:
            if not 0 <= token_id < self.vocab_size:
                raise SpecvizError(
                    "Token id {id} does not exist: ids run from 0 to {last}.",
                    "prompt",
                    id=quoted(token_id),
                    last=self.vocab_size - 1,
                )
        return ids

    def _check_room(self, length: int) -> None:
        if self.context_length is not None and length > self.context_length - 1:
            excess = length - (self.context_length - 1)
            sizes = {"length": f"{length:,}", "context": f"{self.context_length:,}"}
            sizes |= {"name": self.target_name, "excess": f"{excess:,}"}
            if rope_switch(self.target) == self.context_length:
                raise SpecvizError(
                    "The prompt is too long: it has {length} tokens. After {context} tokens {name} changes its "
                    "rotary factors (LongRoPE), and all of the text would have to be read again.",
                    "prompt",
                    **sizes,
                )
            if mask_switch(self.target) == self.context_length:
                raise SpecvizError(
                    "The prompt is too long: it has {length} tokens. After {context} tokens {name} hides tokens "
                    "depending on what else the same pass reads, so its text would depend on how it is read.",
                    "prompt",
                    **sizes,
                )
            raise SpecvizError(
                "The prompt is too long by {excess}: it has {length} tokens, and the context holds {context}, "
                "including at least one new token.",
                "prompt",
                **sizes,
            )


def _eos_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> frozenset[int]:
    """End tokens from all of the places that may name them."""
    named = (
        getattr(model.generation_config, "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        getattr(model.config.get_text_config(), "eos_token_id", None),
        tokenizer.eos_token_id,
    )
    return frozenset(token_id for token_id in _token_ids(named) if 0 <= token_id < vocab_size)


def _token_ids(named: object) -> Iterator[int]:
    """The ids in a configuration's entry for one or several tokens: a number, at times as text, a list, nothing."""
    if isinstance(named, (list, tuple)):
        for entry in named:
            yield from _token_ids(entry)
    elif isinstance(named, str) and named.isdecimal():
        yield int(named)
    elif isinstance(named, int) and not isinstance(named, bool):
        yield named


def _from_here(name: str) -> str:
    """A model's name in a command: a folder below the working directory by its path from there."""
    path, here = pathlib.Path(name), pathlib.Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else name

"""What published parts share: how their weights are read, whose embeddings and output head they have, how they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.initialization import no_init_weights

from specviz.parts.part_files import PartFiles
from specviz.parts.reading import TrainedPart
from specviz.passes.devices import home_of
from specviz.passes.model_twins import align
from specviz.records.errors import SpecvizError

#: Tensors that say which of the target's tokens a part drafts from.
MAPS = {"d2t", "t2d", "token_map"}

#: A published part.
AnyPart = TypeVar("AnyPart", bound="PublishedPart")
AnyModule = TypeVar("AnyModule", bound=nn.Module)


class PublishedPart(nn.Module, TrainedPart):
    """A part in a published format. Its weights have the names of its files, apart from their prefixes."""

    states_are_read: ClassVar[bool] = True  # whether drafting reads its hidden states, and not its logits alone

    #: Where each of the target's tokens stands in the part's own, smaller vocabulary (`columns_of`); None if it drafts
    #: from the target's.
    columns: Tensor | None
    #: What its weights are called in its files, by their own names.
    names: dict[str, str]

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        # A buffer: programs are compiled for its shape, not for its values.
        self.register_buffer("columns", None, persistent=False)

    @classmethod
    def load(cls, files: PartFiles, target: PreTrainedModel) -> Self:
        """The part in a folder, in evaluation mode, on the target's device and in its dtype.

        Raises SpecvizError (field ``draft``, or ``drafter`` for what the target lacks) if it is damaged, of a kind that
        is not known, or was made for another target.
        """
        raise NotImplementedError

    @property
    def reachable(self) -> Tensor | None:
        if self.columns is None or (lacking := self.columns.max()) == len(self.columns) - 1:
            return None
        return self.columns < lacking

    def shapes(self) -> list[tuple[int, ...]]:
        """Of its weights, for which programs are compiled."""
        return [tuple(weight.shape) for weight in self.parameters()]

    def facts(self) -> dict[str, Any]:
        return {"format": self.method, "hidden_states": list(self.feature_layers)}


def filled(
    make: Callable[[], AnyPart], files: PartFiles, target: PreTrainedModel, columns: Tensor | None = None
) -> AnyPart:
    """A part with the weights from `files`, in evaluation mode, on the target's device and in its dtype.

    columns: of its vocabulary. Everything else as `weighted`.
    """
    part = weighted(make, files)
    part.columns = columns
    part.names = {name: name if files.names is None else files.names[name] for name in part.state_dict()}
    for weight in part.parameters():
        # Not the frequencies of rotary positions, which half precision would spoil.
        weight.data = weight.data.to(target.dtype)
    return part.to(home_of(target))


def weighted(make: Callable[[], AnyModule], files: PartFiles) -> AnyModule:
    """A module with the weights from `files`, in evaluation mode, on the CPU, as they are stored.

    make: makes it, with any weights. files: with its names. Raises SpecvizError (field ``draft``) for weights that are
    damaged, missing, unknown, or of other shapes or kinds than the module's.
    """
    with torch.device("meta"):
        # Whatever sizes a configuration promises, they take no memory yet.
        expected = make().state_dict()
    for name, tensor in expected.items():
        if name not in files.shapes:
            raise files.complaint("The weights in {folder} lack {tensor}, or some of its dimensions.", tensor=name)
        if files.shapes[name] != tensor.shape:
            raise files.complaint(
                "{tensor} in {folder} has the shape {found}, but the configuration and the target need {wanted}.",
                tensor=name,
                found=list(files.shapes[name]),
                wanted=list(tensor.shape),
            )
    if unknown := sorted(files.shapes.keys() - expected.keys() - MAPS):
        raise files.complaint(
            "The weights in {folder} contain {tensor}, which specviz does not know in this format and would leave out.",
            tensor=unknown[0],
        )
    tensors = files.tensors()
    for name, tensor in expected.items():
        found = tensors[name].dtype
        # Numbers in 8 bits lack their scales.
        if found.is_floating_point != tensor.is_floating_point() or found.itemsize == 1:
            raise files.complaint(
                "{tensor} in {folder} holds numbers of the type {found}, which specviz does not expect in a part.",
                tensor=name,
                found=str(found).removeprefix("torch."),
            )
    with no_init_weights():
        module = make()
    # The tensors themselves: as the module's own they would be in memory twice.
    module.load_state_dict({name: tensors[name] for name in expected}, assign=True)
    del tensors
    align(module)
    return module.eval().requires_grad_(False)


def same_target(files: PartFiles, target: PreTrainedModel, **sizes: int | None) -> None:
    """Raises SpecvizError (field ``draft``) if one of these sizes is not the target's; None is not known.

    sizes: by transformers' names, such as ``hidden_size`` or ``vocab_size``.
    """
    config = target.config.get_text_config()
    for name, size in sizes.items():
        target_size = getattr(config, name)
        if size is not None and size != target_size:
            raise another_target(files, name, size, target_size)


def another_target(files: PartFiles, name: str, size: object, target_size: object) -> SpecvizError:
    """Says that something has this size in a part's files, and its own in the target."""
    return files.complaint(
        "The part in {folder} was made for another target: {name} is {size} there and {own} here.",
        name=name,
        size=size,
        own=target_size,
    )


def feature_layers(files: PartFiles, target: PreTrainedModel, numbers: Sequence[int] | None) -> tuple[int, ...]:
    """The target's hidden states that a part reads side by side, as `PublishedPart.feature_layers` counts them.

    numbers: those in its files. speculators writes the numbers of hidden states, the others those of the layers whose
    outputs they are, −1 being the embeddings; None: as SafeAILab's files, which name none, what enters the layers 2,
    L/2 and L − 3. Raises SpecvizError (field ``draft``) if this target does not have them.
    """
    config = target.config.get_text_config()
    layers, width, fused = config.num_hidden_layers, config.hidden_size, files.size("fc.weight", 1)
    states: tuple[int, ...]
    if numbers is None:
        states = (2, layers // 2, layers - 3)
    else:
        states = tuple(number + ("speculators_model_type" not in files.settings) for number in numbers)
    if len(states) * width != fused or not all(0 <= state <= layers for state in states):
        raise files.complaint(
            "The part in {folder} was made for another target: it reads {fused} numbers from the hidden states "
            "{states}, but this target has {layers} layers of width {width}.",
            fused=fused,
            states=", ".join(map(str, states)),
            layers=layers,
            width=width,
        )
    return states


def mask_token(files: PartFiles, rows: int) -> int:
    """The token that stands for a mask, of an embedding table with so many rows. Raises SpecvizError (field ``draft``)
    if there is none."""
    mask = files.needed("mask_token_id", "pard_token", "ptd_token_id")
    if mask >= rows:
        raise another_target(files, "mask_token_id", mask, f"< {rows}")
    return mask


def smaller_vocabulary(files: PartFiles, target: PreTrainedModel) -> Tensor | None:
    """`columns_of`, of a part whose files have ``d2t``; None if it drafts from the whole vocabulary.

    Raises as that, and for files that lack it.
    """
    vocab_size = logit_width(target)
    rows = files.size("lm_head.weight", 0) if "lm_head.weight" in files.shapes else vocab_size
    offsets = files.tensor("d2t") if "d2t" in files.shapes else torch.zeros(vocab_size)
    if rows != offsets.numel():
        raise files.complaint(
            "The head in {folder} drafts from {rows} tokens, but its files do not say which of the target's "
            "{vocabulary} tokens they are (d2t).",
            rows=rows,
            vocabulary=vocab_size,
        )
    drafts_all = rows == vocab_size and not offsets.any()
    return None if drafts_all else columns_of(files, offsets, vocab_size)


def columns_of(files: PartFiles, offsets: Tensor, vocab_size: int) -> Tensor:
    """Where each of the target's tokens stands in a smaller vocabulary, as `specviz.rules.sampling.in_order` takes it:
    [vocab] int64, the number of rows for those that it lacks.

    offsets: ``d2t`` of the files, [rows]: what to add to a row's number to get the target's token. Raises SpecvizError
    (field ``draft``) unless the tokens rise and exist.
    """
    ids = torch.arange(offsets.numel()) + offsets.flatten().long()
    if not len(ids) or not (ids.diff() > 0).all() or ids[0] < 0 or ids[-1] >= vocab_size:
        raise files.complaint(
            "The vocabulary of the part in {folder} is damaged or belongs to another target: its tokens do not "
            "rise from 0 to at most {last}.",
            last=vocab_size - 1,
        )
    columns = torch.full((vocab_size,), len(ids))
    columns[ids] = torch.arange(len(ids))
    return columns


def hidden_size_of(target: PreTrainedModel) -> int:
    """Width of the target's hidden states and of its embeddings.

    Raises SpecvizError (field ``drafter``) if they differ or there is no output head: no part can be trained on it.
    """
    size = target.config.get_text_config().hidden_size
    head = target.get_output_embeddings()
    widths = (target.get_input_embeddings().weight.shape[1], None if head is None else head.weight.shape[1])
    if widths != (size, size):
        raise SpecvizError(
            "Trained heads need embeddings and an output head as wide as the hidden states, but this target's "
            "widths are {embeddings}, {head} and {size}: choose another drafter.",
            "drafter",
            embeddings=widths[0],
            head=widths[1],
            size=size,
        )
    return size


def logit_width(model: PreTrainedModel) -> int:
    """How many logits a row of this model's output has."""
    head = model.get_output_embeddings()
    if head is None:
        return model.config.get_text_config().vocab_size
    # A quantised head's weights are packed, so their shape does not say.
    return head.out_features if hasattr(head, "out_features") else head.weight.shape[0]

"""Gemma 4 assistants (google/gemma-4-…-it-assistant): a few Gemma layers without keys and values of their own, whose
queries read the target's.

Names of weights and settings are those of transformers' `Gemma4AssistantForCausalLM`, which the checkpoints come from,
and so is what follows where engines differ: all tokens of a draft are drafted from the place of the text's last token
(vLLM: from the place before it). The target has not read that token yet, so the text's other tokens are what is seen.
"""

from __future__ import annotations

from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.models.gemma4_assistant.modeling_gemma4_assistant import Gemma4AssistantMaskedEmbedder

from specviz.parts.part_files import PartFiles
from specviz.parts.published import PublishedPart, Servers, another_target, filled, read_as, same_target
from specviz.passes.cached_model import CachedModel
from specviz.passes.devices import is_sharded
from specviz.records.words import Sentence

#: Keys and values that queries read, by the kind of layer: [1, heads, tokens, head size] each.
Memory = dict[str, tuple[Tensor, Tensor]]


class GemmaAssistant(PublishedPart):
    """Drafts a token from the embedding of the last one and the last hidden state, [e; h], side by side.

    After the first token its own state stands in for the target's. A row of logits depends on the token's parent alone.
    """

    kind: ClassVar[str] = "mtp"
    method: ClassVar[str] = "Gemma 4 assistant"
    servers: ClassVar[Servers] = Servers("mtp", None, "draft-mtp", "ASSISTANT")
    num_modules: ClassVar[int] = 1

    def __init__(self, config: PreTrainedConfig, target: PreTrainedModel):
        super().__init__()
        text, of_target = config.get_text_config(), target.config.get_text_config()
        self.feature_layers = (of_target.num_hidden_layers,)
        #: By the kind of layer, which of the target's layers has the keys and values: the last one that has its own.
        self.sources = {
            kind: layer
            for layer, (kind, mode) in enumerate(zip(of_target.layer_types, of_target.kv_sharing_modes))
            if mode == "store" and kind in text.layer_types
        }
        self.step_back = 0  # from the text's last token to the place that is drafted from
        self.model = AutoModel.from_config(text)
        self.pre_projection = nn.Linear(2 * config.backbone_hidden_size, text.hidden_size, bias=False)
        self.post_projection = nn.Linear(text.hidden_size, config.backbone_hidden_size, bias=False)
        self.lm_head = self.masked_embedding = None
        if not config.tie_word_embeddings:
            self.lm_head = nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        if config.use_ordered_embeddings:
            self.masked_embedding = Gemma4AssistantMaskedEmbedder(config)

    def forward(self, embeddings: Tensor, states: Tensor, memory: Memory, position: int) -> tuple[Tensor, Tensor]:
        """Logits [n, vocab], −∞ for tokens that are not looked at, and states [n, d] to go on from.

        embeddings, states: [n, d], the target's for tokens that do not see each other. position: the text's last
        token's.
        """
        # As texts of one token: they do not see each other.
        inputs = self.pre_projection(torch.cat([embeddings, states], -1)).unsqueeze(1)
        hidden = self.model(
            inputs_embeds=inputs,
            position_ids=torch.full((1, 1), position - self.step_back, device=inputs.device),
            attention_mask=dict.fromkeys(memory),  # all of the memory is seen
            shared_kv_states={
                kind: (keys.expand(len(inputs), -1, -1, -1), values.expand(len(inputs), -1, -1, -1))
                for kind, (keys, values) in memory.items()
            },
            use_cache=False,
        ).last_hidden_state[:, 0]
        return self._logits(hidden), self.post_projection(hidden)

    def _logits(self, hidden: Tensor) -> Tensor:
        table = self.model.embed_tokens.weight if self.lm_head is None else self.lm_head.weight
        clusters = self.masked_embedding
        if clusters is None:
            return hidden @ table.T
        # transformers' class marks the others with the least score less one, which leaves them a probability.
        best = clusters.centroids(hidden).topk(clusters.centroid_intermediate_top_k).indices
        ids = clusters.token_ordering.unflatten(0, (clusters.num_centroids, -1))[best].flatten(1)
        scores = (table[ids] @ hidden.unsqueeze(-1)).squeeze(-1)
        return hidden.new_full((len(hidden), len(table)), -torch.inf).scatter(1, ids, scores)

    def reading(self) -> dict[str, Any]:
        places = {"keys_and_values": self.sources, "place": "before the last token" if self.step_back else "last token"}
        return super().reading() | places

    def other_readings(self) -> dict[Sentence, PublishedPart]:
        before = Sentence("drafting from the place before the last token")
        return super().other_readings() | {before: read_as(self, step_back=1)}

    @classmethod
    def load(cls, files: PartFiles, target: PreTrainedModel) -> Self:
        if is_sharded(target):
            raise files.complaint(
                "The assistant in {folder} reads the target's keys and values, which are not whole where its layers "
                "are sharded: choose another device."
            )
        config = AutoConfig.for_model(**files.settings)
        _check(files, config, target)
        # The output head is the embeddings: some files hold both.
        copied = {"lm_head.weight"} if config.tie_word_embeddings else ()
        files = files.named(lambda name: None if name in copied else name)
        part = filled(lambda: cls(config, target), files, target)
        if part.masked_embedding is not None and not _groups_all(part.masked_embedding):
            raise files.complaint(
                "The groups of tokens in {folder} (masked_embedding) are damaged: they do not hold each token once."
            )
        return part


class AssistantReader(CachedModel):
    """An assistant beside the target's reader of a text. Row i is that of token i + 1, but it keeps nothing itself."""

    def __init__(self, head: GemmaAssistant, of_target: CachedModel):
        self.head = head
        self.of_target = of_target
        self.memory: Memory = {}
        self.remembered = 0  # tokens that the target had read then
        super().__init__(head.model, of_target.stopwatch)

    def _empty(self) -> None:
        """Has nothing to empty."""

    def _read(
        self, token_ids: Tensor, keep: int, visible: Tensor | None, positions: Tensor | None, inputs: Tensor
    ) -> Tensor:
        if self.remembered != self.of_target.length:
            self.memory, self.remembered = self._rows(), self.of_target.length
        # Nothing goes on from what comes before in the text.
        embeddings = self.of_target.model.get_input_embeddings()(token_ids[-keep:]).to(inputs.device)
        logits, states = self.head(embeddings, inputs[-keep:], self.memory, self.remembered)
        self.features = states.expand(len(token_ids), -1)
        return logits

    def _rows(self) -> Memory:
        """What the queries read: of windows, what the target's own layer sees from the text's last token."""
        rows, length, found = self.of_target.rows(), self.of_target.length, {}
        for kind, layer in self.head.sources.items():
            # Before its window is full, and over static buffers, a layer holds more.
            count = min(length, self.model.config.sliding_window - 1) if kind == "sliding_attention" else length
            keys, values = (part[:, :, -count:].to(self.head.pre_projection.weight) for part in rows[2 * layer :][:2])
            found[kind] = keys, values
        return found

    def _forget(self, count: int) -> None:
        """Has nothing to forget."""


def _groups_all(clusters: Gemma4AssistantMaskedEmbedder) -> bool:
    order, groups = clusters.token_ordering, clusters.num_centroids
    each_once = torch.equal(order.sort().values, torch.arange(len(order), device=order.device))
    return each_once and len(order) % groups == 0 and clusters.centroid_intermediate_top_k <= groups


def _check(files: PartFiles, config: PreTrainedConfig, target: PreTrainedModel) -> None:
    text, of_target = config.get_text_config(), target.config.get_text_config()
    modes = getattr(of_target, "kv_sharing_modes", None)
    sources = {} if modes is None else dict(zip(of_target.layer_types, of_target.per_layer_config))
    if not set(text.layer_types) <= sources.keys():
        raise files.complaint(
            "The assistant in {folder} reads the keys and values of a Gemma 4 model: name the one that it was made for "
            "as the target."
        )
    sizes = {"hidden_size": config.backbone_hidden_size, "vocab_size": text.vocab_size}
    same_target(files, target, **sizes, sliding_window=text.sliding_window)
    for kind, own in zip(text.layer_types, text.per_layer_config):
        for name in ("head_dim", "num_key_value_heads"):
            if (size := getattr(own, name)) != (theirs := getattr(sources[kind], name)):
                raise another_target(files, f"{name} ({kind})", size, theirs)

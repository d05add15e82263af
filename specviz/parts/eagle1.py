"""EAGLE heads of the first two papers as they are published (Li et al., arXiv 2401.15077 and 2406.16858), and HASS's.

SafeAILab's own files, and those that speculators made of them, which may have a few norms more.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specviz.parts.head_passes import PublishedHead
from specviz.parts.part_files import PartFiles
from specviz.parts.published import Servers, filled, same_target

#: The names of speculators, and of the norms, in SafeAILab's manner.
_RENAMED = [
    (r"^transformer\.", "layers.0."),
    (r"^fusion_fc\.", "fc."),
    (r"^hidden_layernorm\.", "layers.0.input_layernorm."),
    (r"^(embed|embedding|post_embedding)_layernorm\.", "embed_norm."),
    (r"^(lm_head|pre_lm_head)_layernorm\.", "norm."),
]


class Eagle1Head(PublishedHead):
    """Row t takes the target's last hidden state f at token t and the embedding e of token t + 1, makes a state in the
    manner of f at token t + 1 of them, and with the target's output head predicts token t + 2. Where the target has not
    read token t yet, the head's own state of the row before stands in for f.

        x = W [e; f] + b;  x += attention(x);  hidden = x + MLP(norm(x));  logits = output head(hidden)

    There are no norms but this one, unless the files have them: of e, before attention, before the output head.
    """

    kind: ClassVar[str] = "eagle"
    method: ClassVar[str] = "EAGLE"
    servers: ClassVar[Servers] = Servers("eagle", "EAGLE", model="EAGLE_HEAD")

    def __init__(self, files: PartFiles, target: PreTrainedModel):
        super().__init__(files)
        d, eps, shapes = self.config.hidden_size, self.config.rms_norm_eps, files.shapes
        self.feature_layers = (target.config.get_text_config().num_hidden_layers,)
        self.fc = nn.Linear(2 * d, d, bias="fc.bias" in shapes)
        if "layers.0.input_layernorm.weight" not in shapes:
            self.layers[0].input_layernorm = nn.Identity()
        self.embed_norm, self.norm = (
            LlamaRMSNorm(d, eps) if f"{name}.weight" in shapes else nn.Identity() for name in ("embed_norm", "norm")
        )

    def read(self, embeddings: Tensor, features: Tensor, **attending: Any) -> Tensor:
        x = self.fc(torch.cat([self.embed_norm(embeddings), features], -1))
        return self.layers[0](x, **attending)

    def reading(self) -> dict[str, Any]:
        """And which of the norms it has."""
        places = {"embeddings": self.embed_norm, "attention": self.layers[0].input_layernorm, "output": self.norm}
        normed = [place for place, norm in places.items() if not isinstance(norm, nn.Identity)]
        return super().reading() | {"normed": normed}


def load_eagle1(files: PartFiles, target: PreTrainedModel) -> Eagle1Head:
    """The EAGLE head in a folder. Raises SpecvizError (field ``draft``) if it is damaged, or was made for another
    target."""
    files = files.named(_own_name)
    same_target(files, target, hidden_size=files.size("fc.weight", 0), vocab_size=files.setting("vocab_size"))
    return filled(lambda: Eagle1Head(files, target), files, target)


def _own_name(name: str) -> str | None:
    for pattern, own in _RENAMED:
        name = re.sub(pattern, own, name)
    return None if name.endswith("rotary_emb.inv_freq") else name

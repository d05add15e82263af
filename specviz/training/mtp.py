"""An MTP head on the frozen target: one module, trained to be run again on its own states for every further depth."""

from __future__ import annotations

from specviz.passes.trained_heads import MtpConfig, MtpHead
from specviz.training.eagle import EagleRecipe


class MtpRecipe(EagleRecipe):
    """The EAGLE head's loss and unrolled steps. DeepSeek-V3 trains its modules with the target, on the text's tokens
    (arXiv 2412.19437, eq. 24 and 25); here the target is there already, and its distributions are the labels."""

    name = "mtp"
    head_class, config_class = MtpHead, MtpConfig

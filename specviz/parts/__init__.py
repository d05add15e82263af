"""Trained parts that draft from the target's hidden states, in the formats in which they are published.

part_files: the files in a folder; coded_weights: weights in codes of few bits
gguf_file: a GGUF file as it is stored; gguf_parts: parts in one; gguf_modules: a target's modules in one
formats: what they are, by the names and shapes of their tensors
reading: how parts draft: rows from passes that the host makes, or a GPU; servers: what servers call them
published: what parts in files share; head_passes: a head as a model that passes serve
eagle: EAGLE-3, P-EAGLE and earlier EAGLE heads
dflash, dspark: drafters that fill in blocks of masks; block_files: what their files say
medusa: Medusa heads and MLP speculators
mtp: multi-token-prediction modules; gemma_assistant: Gemma 4's assistants
"""

"""Real engines on the embedded pair: ``python -m tools.engines record | measure | table | gguf``.

servers     starts llama.cpp's server and vLLM's, and asks them
recording   writes down what they answer, for tests/engines
measuring   which parts they load, the texts they write, tokens a pass
table       what was measured, for docs/training.md
gguf_files  the embedded models as llama.cpp reads them
"""

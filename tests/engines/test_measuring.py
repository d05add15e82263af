"""What `python -m tools.engines measure` makes of what engines say."""

import pytest

from tools.engines.measuring import equal_tokens, reason_in

#: Lines of engines that ended, and the reason among them.
LOGS = [
    (
        "E load: error loading model: check_tensor_dims: tensor 'fc.weight' has wrong shape; got   1152,    1\n"
        "E srv  llama_server: exiting due to model loading error",
        "tensor 'fc.weight' has wrong shape; got 1152, 1",
    ),
    (
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\n"
        "  Value error, Expected one of: {'eagle3': <function update_eagle3 at 0x7f0b>}. [type=value_error, input=1]",
        "Expected one of: {'eagle3'}.",
    ),
    (
        "WARNING:hf-to-gguf:Trying to load config.json instead\nERROR:hf-to-gguf:Model MTPDraftModel is not supported",
        "Model MTPDraftModel is not supported",
    ),
    (
        "ERROR 11-27 [core.py:9] ValueError: There is no module or parameter named 'draft_id_to_target_id'\n"
        "RuntimeError: Engine core initialization failed.",
        "There is no module or parameter named 'draft_id_to_target_id'",
    ),
    ("Killed", "it ended without a reason"),
]


@pytest.mark.parametrize("log, reason", LOGS)
def test_why_an_engine_did_not_start_is_said_in_its_own_words(log, reason):
    assert reason_in(log) == reason


def test_tokens_are_equal_up_to_the_first_that_is_not():
    assert equal_tokens([[1, 2, 3], [4, 5]], [[1, 2, 3], [4, 5]]) == 5
    assert equal_tokens([[1, 2, 3], [4, 5]], [[1, 9, 3], [4]]) == 2

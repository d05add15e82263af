"""What is written for llama.cpp is the embedded model, read as people's own GGUF files are."""

import pytest
import torch

import specviz
from tools.engines.servers import write_missing


@pytest.mark.parametrize("drafter, exact", [(None, False), ("draft_model", False), ("draft_model", True)])
def test_a_gguf_file_holds_the_model_s_weights_and_tokenizer(drafter, exact, tmp_path):
    write_missing(tmp_path, drafter, exact)
    embedded = specviz.load_pair(device="cpu", dtype="float32", passes="plain")
    model = embedded.target if drafter is None else embedded.draft
    file = tmp_path / ("target.gguf" if drafter is None else "draft.gguf")
    written = specviz.load_pair(target=file, device="cpu", dtype="float32", passes="plain")
    expected = model.state_dict()
    assert written.target.state_dict().keys() == expected.keys()
    assert all(torch.equal(weight, expected[name]) for name, weight in written.target.state_dict().items())
    text = "Once upon a time,  \n\tthere were 1234 naïve foxes' dens; x_1 = [y for y in range(3)]<|endoftext|>"
    assert written.tokenizer(text).input_ids == embedded.tokenizer(text).input_ids

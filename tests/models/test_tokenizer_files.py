"""A tokenizer that cannot be used is refused while loading, by a true sentence that names the file and a way out."""

import base64
import json
import pathlib

import pytest
import transformers
from refusal import refused
from tiny import byte_tokenizer
from transformers import CONFIG_MAPPING, AutoTokenizer, PreTrainedTokenizerFast
from transformers.utils import import_utils

from specviz.models import refusals
from specviz.models.sources import find_model, load_tokenizer

#: How such files begin, which is all that is needed here.
SENTENCEPIECE = b"\x0a\x0e\x0a\x05<unk>\x15\x00\x00\x00\x00\x18\x02"
TIKTOKEN = b"".join(base64.b64encode(bytes([byte])) + b" %d\n" % byte for byte in range(256))
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 123\n"
OWN_CODE = {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}}

KINDS = ["llama", "gpt2", "ctrl"]
DAMAGED = (b"{", b"[]", b"\xff\xfe")


@pytest.fixture
def beside(tmp_path):
    """Lays files beside a configuration and returns the folder."""

    def lay(kind="llama", **files):
        CONFIG_MAPPING[kind]().save_pretrained(tmp_path)
        for name, held in files.items():
            data = held if isinstance(held, bytes) else json.dumps(held).encode()
            (tmp_path / name.replace("__", ".")).write_bytes(data)
        return tmp_path

    return lay


@pytest.fixture
def installed(monkeypatch):
    """Says of each package that reads tokenizers whether it is installed."""

    def say(**packages):
        for name, there in packages.items():
            monkeypatch.setitem(refusals.PACKAGES, name, lambda there=there: there)
            if name in import_utils.BACKENDS_MAPPING:
                told = (lambda there=there: there, import_utils.BACKENDS_MAPPING[name][1])
                monkeypatch.setitem(import_utils.BACKENDS_MAPPING, name, told)

    return say


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A byte-level tokenizer.json."""
    folder = tmp_path_factory.mktemp("whole")
    byte_tokenizer().save_pretrained(folder)
    return (folder / "tokenizer.json").read_bytes()


def refusal(folder: pathlib.Path) -> str:
    with refused("draft") as caught:
        load_tokenizer(find_model(folder, "draft", None, None))
    assert folder.name in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "missing", [{"sentencepiece": False, "protobuf": False}, {"protobuf": False}, {"sentencepiece": False}]
)
def test_packages_that_a_sentencepiece_model_needs_are_named(kind, missing, beside, installed):
    installed(sentencepiece=True, protobuf=True, tiktoken=True)
    installed(**missing)
    sentence = refusal(beside(kind, tokenizer__model=SENTENCEPIECE))
    assert "tokenizer.model" in sentence and f"pip install {' '.join(missing)}," in sentence


FOREIGN = {"tokenizer_config__json": OWN_CODE, "own__py": b""}
LLAMA = {"tokenizer_config__json": {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>"}}

#: (what lies beside the configuration, what the refusal says; of files that are no tokenizer, their names too)
LAID = [
    *(
        (files, ("has no tokenizer.json", *(name.replace("__", ".") for name in files)))
        for files in ({}, LLAMA, {"vocab__json": {"a": 0}}, {"merges__txt": b"a b\n"}, {"vocab__txt": b"[UNK]\na\n"})
    ),
    *(
        (FOREIGN | also, ("runs no third-party code", "auto_map"))
        for also in ({}, {"qwen__tiktoken": TIKTOKEN}, {"tokenizer__model": SENTENCEPIECE})
    ),
    *(
        ({name: POINTER}, (f"{name.replace('__', '.')} in", "git lfs pull"))
        for name in ("tokenizer__json", "tokenizer__model", "vocab__json", "tokenizer_config__json")
    ),
    *(({"tokenizer__json": text}, ("The tokenizer.json of", "damaged")) for text in (*DAMAGED, b'{"a": 1}')),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("files, words", LAID)
def test_what_is_no_whole_tokenizer_is_refused_by_what_it_is(kind, files, words, beside):
    sentence = refusal(beside(kind, **files))
    assert all(word in sentence for word in words)


@pytest.mark.parametrize("text", DAMAGED)
def test_a_damaged_configuration_beside_a_whole_tokenizer_is_called_so(text, beside, whole):
    sentence = refusal(beside(tokenizer__json=whole, tokenizer_config__json=text))
    assert "The tokenizer_config.json of" in sentence and "damaged" in sentence


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_with_code_of_its_own_is_read_from_its_tokenizer_json(kind, beside, whole):
    folder = beside(kind, tokenizer_config__json={"tokenizer_class": "OwnTokenizer"}, tokenizer__json=whole)
    tokenizer = load_tokenizer(find_model(folder, "target", None, None))
    assert tokenizer.decode(tokenizer.encode("a tale")) == "a tale"


#: Classes that load and raise on the first text, and those that raise over a file that is not damaged.
AT_ODDS = ["CodeLlama", "Bert", "Gemma", "Nllb", "T5", "CTRL", "Wav2Vec2CTC"]


@pytest.mark.parametrize("kind", AT_ODDS)
def test_a_class_that_does_not_go_with_the_file_is_found_out_and_the_way_out_works(kind, beside, whole):
    folder = beside(tokenizer__json=whole, tokenizer_config__json={"tokenizer_class": f"{kind}Tokenizer"})
    sentence = refusal(folder)
    assert "damaged" not in sentence and "set tokenizer_class" in sentence and "PreTrainedTokenizerFast" in sentence
    beside(tokenizer_config__json={"tokenizer_class": "PreTrainedTokenizerFast"})
    tokenizer = load_tokenizer(find_model(folder, "target", None, None))
    assert tokenizer.decode(tokenizer.encode("a tale")) == "a tale"


@pytest.mark.parametrize("name", ["BioGptTokenizer", "GPTSw3Tokenizer", "CpmAntTokenizer"])
def test_a_class_that_needs_a_package_names_it(name, beside, monkeypatch):
    def needs(*arguments, **options):
        raise ImportError(f"{name} requires the Moses library but it was not found. Install it.") from missing

    missing = ModuleNotFoundError("No module named 'moses'")
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", needs)
    assert refusal(beside(vocab__json={"a": 0})).endswith("not installed: No module named 'moses'.")


@pytest.mark.parametrize("broken", ["__call__", "decode"])
@pytest.mark.parametrize("error", [AttributeError("odd"), KeyError("odd")])
def test_whatever_raises_on_the_first_text_does_so_while_loading(broken, error, beside, whole, monkeypatch):
    def raises(*arguments, **options):
        raise error

    monkeypatch.setattr(PreTrainedTokenizerFast, broken, raises)
    sentence = refusal(beside(tokenizer__json=whole, tokenizer_config__json={"tokenizer_class": "TokenizersBackend"}))
    assert "odd" in sentence and "cannot be used" in sentence


def test_a_tokenizer_of_bytes_needs_no_files(beside):
    for kind in ("ByT5Tokenizer", "PerceiverTokenizer"):
        folder = beside(tokenizer_config__json={"tokenizer_class": kind})
        assert isinstance(load_tokenizer(find_model(folder, "target", None, None)), getattr(transformers, kind))

"""Prompts that show something on the embedded pair: familiar prose, code, a text that repeats, a hard one."""

from __future__ import annotations

from dataclasses import dataclass

#: A turn of a conversation: its ``role`` and its ``content``.
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Preset:
    """A prompt with a name."""

    name: str
    prompt: str
    domain: str = ""  # under which results are reported, for prompts that were read from a file
    messages: tuple[Message, ...] = ()  # a conversation in the prompt's place, for the chat template
    chat: bool = False  # the prompt is a user's turn, for the chat template


#: The page's temperature at the start: as the Llama 3 models are used by default (their generation_config.json).
TEMPERATURE = 0.6

PRESETS = (
    # Ordinary prose: the draft model is right more often than not.
    Preset("story", "Once upon a time there was a little girl who lived in a"),
    Preset("story_king", "The King had three sons, and the youngest of them was"),
    Preset("story_sea", "The captain looked at the sea for a long while. At last he said,"),
    # Code: names come back, so copying from the text helps.
    Preset("python", "def read_lines(path):\n    with open(path) as file:\n        for line in file:\n"),
    # The text repeats itself: prompt lookup copies whole phrases for free.
    Preset(
        "repeats",
        "The old man had a cow, and the cow said moo. The old man had a dog, and the dog said bow-wow. "
        "The old man had a cat, and the cat said mew. The old man had a cow, and the cow said moo. "
        "The old man had a dog, and the dog said",
    ),
    # A regular expression: about half of the sampled guesses are rejected, and speculation hardly pays.
    Preset(
        "hard",
        "    (r'^\\s*(?P<key>[^=]+?)\\s*=\\s*(?P<val>.*)$', re.VERBOSE | re.M),\n    (",
    ),
)

#: For models that answer: something to say at length, to copy from, to translate, and to repeat.
CHAT_PRESETS = (
    Preset("question", "Why is the sky blue at noon and red in the evening?", chat=True),
    Preset(
        "summary",
        "Summarise this text in two sentences.\n\nThe lighthouse on the northern cape was built in 1871, after three "
        "ships had been lost on its rocks in a single winter. Its keeper climbed the 212 steps of the tower twice a "
        "night to wind the clockwork that turned the lamp. In 1934 a motor took over the winding, and in 1979 the last "
        "keeper left. Today the lighthouse on the northern cape is a museum, and its lamp is lit on one night of the "
        "year, in memory of the three ships.",
        chat=True,
    ),
    Preset("code", "Write a Python function that counts how often each word occurs in a file.", chat=True),
    Preset(
        "translation",
        "Translate into French: The library opens at nine, and the children are waiting at the door.",
        chat=True,
    ),
    Preset(
        "list",
        "Write one line for each month of the year, like this: January is month 1 of 12. February is month 2 of 12.",
        chat=True,
    ),
)

#: The presets that are prose; speed over "the stories" is measured on these.
STORIES = tuple(preset for preset in PRESETS if preset.name.startswith("story"))

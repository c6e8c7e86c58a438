"""What a live translation tells: a word was read, a word was written, a sentence is over."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Read:
    """A source word was read."""

    word: str


@dataclass(frozen=True)
class Write:
    """A target word was written, and will not change.

    Args:
        word (`str`): The word, with its punctuation.
        source_words_read, source_tokens_read (`int`): How much of the stream had been read when it was written.
        seconds (`float`): Compute time since the previous word.
    """

    word: str
    source_words_read: int
    source_tokens_read: int
    seconds: float


@dataclass(frozen=True)
class SentenceEnd:
    """A sentence has been read and its translation is complete.

    Args:
        source, target (`str`): The sentence and its translation.
        source_span, target_span (`tuple[int, int]`):
            Their words, counted from the start of the text: the first one, and the one after the last.
    """

    source: str
    target: str
    source_span: tuple[int, int]
    target_span: tuple[int, int]


Event = Read | Write | SentenceEnd
NAMES = {Read: "read", Write: "write", SentenceEnd: "sentence_end"}
KINDS = {name: kind for kind, name in NAMES.items()}


def as_dict(event: Event) -> dict:
    """An event for JSON, with its name under `event`."""
    return {"event": NAMES[type(event)], **vars(event)}


def from_dict(values: dict) -> Event:
    """The event that [`as_dict`] was given."""
    fields = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return KINDS[fields.pop("event")](**fields)

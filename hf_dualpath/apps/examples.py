"""The checkpoint that ships, and sentences to try first with it and with the toy languages."""

from pathlib import Path


DEFAULT_MODEL = Path(__file__).parents[2] / "model_cards" / "dualpath-tatoeba-de-en"
PAPER = "https://aclanthology.org/2022.acl-long.176"

SHIPPED_EXAMPLES = {
    "de-en": [
        "Er hat mir gesagt, dass er morgen nicht kommen kann.",
        "Ich glaube, dass wir zusammen eine Lösung finden werden.",
    ],
    "en-de": ["I would like to go home now.", "We need more time to discuss this important question."],
}
TOY_EXAMPLES = {
    "de-en": ["Eine Hexe tritt zu Hause auf.", "Wir sollen einen Schirm zurücklassen."],
    "en-de": ["Lisa touches our big potato.", "In summer his dog sees her."],
}


def examples_for(direction: str, tokenizer) -> list[str]:
    """The sentences of a direction whose words the vocabulary knows best: a toy model knows the toy languages only."""

    def known_words(texts: list[str]) -> float:
        words = [tokenizer.tokenize(word) for text in texts for word in text.split()]
        return sum(len(pieces) <= 3 and tokenizer.unk_token not in pieces for pieces in words) / len(words)

    return max(
        (found[direction] for found in (SHIPPED_EXAMPLES, TOY_EXAMPLES) if direction in found),
        key=known_words,
        default=[],
    )

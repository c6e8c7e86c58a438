"""The checkpoint that ships, and sentences to try first with it and with the toy languages."""

from pathlib import Path


DEFAULT_MODEL = Path(__file__).parents[2] / "model_cards" / "dualpath-tatoeba-de-en"

SHIPPED_EXAMPLES = {
    "de-en": ["Ich habe heute leider keine Zeit.", "Der Mann, der dort steht, ist mein Bruder."],
    "en-de": ["I would like to go home now.", "He told me that he had lost his keys."],
}
TOY_EXAMPLES = {
    "de-en": ["Eine Hexe tritt zu Hause auf.", "Wir sollen einen Schirm zurücklassen."],
    "en-de": ["Lisa touches our big potato.", "In summer his dog sees her."],
}

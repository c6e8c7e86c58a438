"""Sentences to try first, for the checkpoint that ships and for the toy languages."""

SHIPPED_EXAMPLES = {
    "de-en": ["Ich habe heute leider keine Zeit.", "Der Mann, der dort steht, ist mein Bruder."],
    "en-de": ["I would like to go home now.", "He told me that he had lost his keys."],
}
TOY_EXAMPLES = {
    "de-en": ["Eine Hexe tritt zu Hause auf.", "Wir sollen einen Schirm zurücklassen."],
    "en-de": ["Lisa touches our big potato.", "In summer his dog sees her."],
}

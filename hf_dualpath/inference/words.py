"""Words and their tokens, both ways. Any tokenizer will do that has the few methods used here."""

END_OF_WORD = "▁"


class WordAssembler:
    """Turns a growing list of target tokens into words. A word comes out once, whole, as soon as it is complete."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.boundary = word_boundary(tokenizer)
        self.special = set(tokenizer.all_special_ids)
        self.tokens: list[int] = []

    def push(self, token: int) -> str | None:
        """The word that this token completes, if it does. The end of a sentence completes any."""
        if token in self.special:
            return self.finish()
        if self.boundary == "start":
            word = self.finish() if self.tokens and self._starts_word(token) else None
            self.tokens.append(token)
            return word
        self.tokens.append(token)
        if self.boundary == "token" or token_text(self.tokenizer, token).endswith(END_OF_WORD):
            return self.finish()
        return None

    def finish(self) -> str | None:
        """What is left at the end of a sentence."""
        tokens, self.tokens = self.tokens, []
        if not tokens:
            return None
        return "".join(self.tokenizer.decode(tokens, skip_special_tokens=True).split()) or None

    def _starts_word(self, token: int) -> bool:
        return starts_word(self.tokenizer, token)


def token_text(tokenizer, token: int) -> str:
    """A token as it is written; nothing for one that only the model has, whose table may be larger."""
    return tokenizer.convert_ids_to_tokens(token) or ""


def word_boundary(tokenizer) -> str:
    """Where a tokenizer marks the words: at their `end`, at their `start` (SentencePiece), or each `token` is one."""
    return tokenizer.init_kwargs.get("word_boundary", "start")


def starts_word(tokenizer, token: int) -> bool:
    return token_text(tokenizer, token).startswith((END_OF_WORD, "Ġ"))


def ends_word(tokenizer, token: int, following: int) -> bool:
    """Whether a word ends between two tokens of a text."""
    boundary = word_boundary(tokenizer)
    if boundary == "start":
        return starts_word(tokenizer, following)
    return boundary == "token" or token_text(tokenizer, token).endswith(END_OF_WORD)


def encode_word(tokenizer, word: str) -> list[int]:
    """The tokens of one source word, which do not depend on its neighbours."""
    return tokenizer.encode(word, add_special_tokens=False)

"""A checkpoint's tokenizer without transformers: what streams and batches use of one, over `tokenizers` alone."""

import json
from pathlib import Path

from tokenizers import Tokenizer


class LightTokenizer:
    """Behaves as the `PreTrainedTokenizerFast` of the same files, as far as it goes."""

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        self.init_kwargs = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.encode_special_tokens = self.init_kwargs.get("split_special_tokens", False)
        names = [self.init_kwargs.get(name) for name in ("pad_token", "eos_token", "unk_token")]
        tokens = [name["content"] if isinstance(name, dict) else name for name in names]
        self.all_special_ids = [self._tokenizer.token_to_id(token) for token in tokens if token is not None]
        self.eos_token_id = self._tokenizer.token_to_id(tokens[1])

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def __call__(self, texts: list[str], add_special_tokens: bool = True) -> dict[str, list[list[int]]]:
        found = self._tokenizer.encode_batch(texts, add_special_tokens=add_special_tokens)
        return {"input_ids": [encoding.ids for encoding in found]}

    def get_vocab(self) -> dict[str, int]:
        return self._tokenizer.get_vocab()

    def convert_ids_to_tokens(self, token: int) -> str:
        return self._tokenizer.id_to_token(token)

    def decode(self, tokens: list[int], skip_special_tokens: bool = False) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)


def load_light_tokenizers(folder: str | Path) -> tuple[LightTokenizer, LightTokenizer]:
    """Source and target tokenizer of the first direction; the same object where they are joint."""
    folder = Path(folder)
    if (folder / "source_tokenizer").is_dir():
        return LightTokenizer(folder / "source_tokenizer"), LightTokenizer(folder / "target_tokenizer")
    joint = LightTokenizer(folder)
    return joint, joint

"""Our offline model as a plain `MarianMTModel`: the same weights under the same names, and the same logits."""

import torch
from transformers import GenerationConfig, MarianConfig, MarianMTModel

from ...model.modeling_dualpath import SiMTForConditionalGeneration
from ...model.policies_dualpath import Dials


# What the configurations of Marian and of our directions share.
SHARED_FIELDS = (
    "vocab_size",
    "decoder_vocab_size",
    "max_position_embeddings",
    "d_model",
    "encoder_layers",
    "encoder_ffn_dim",
    "encoder_attention_heads",
    "decoder_layers",
    "decoder_ffn_dim",
    "decoder_attention_heads",
    "activation_function",
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "scale_embedding",
    "share_encoder_decoder_embeddings",
    "tie_word_embeddings",
    "pad_token_id",
    "eos_token_id",
    "bos_token_id",
    "decoder_start_token_id",
)


def to_marian(model: SiMTForConditionalGeneration) -> MarianMTModel:
    """A `MarianMTModel` that translates as our offline model does."""
    config = model.config
    if config.causal_encoder or not config.policy_class.reads_everything:
        raise ValueError(
            f"A Marian translator reads the whole sentence in both directions, and this model has the {config.policy} "
            "policy with a causal encoder: only offline models (`dualpath train --system offline`) are Marian's kind."
        )
    if config.position_embedding != "marian":
        raise ValueError(f"Its positions are {config.position_embedding}'s, which a Marian translator has not.")
    marian = MarianMTModel(MarianConfig(**{name: getattr(config, name) for name in SHARED_FIELDS}))
    marian.to(device=model.device, dtype=model.dtype)
    weights = model.state_dict()
    missing, unexpected = marian.load_state_dict(weights, strict=False)
    missing = [name for name in missing if "embed_positions" not in name and name != "final_logits_bias"]
    if missing or unexpected:
        raise ValueError(f"The weights do not fit: missing {missing}, unexpected {unexpected}.")
    if "final_logits_bias" not in weights:
        torch.nn.init.zeros_(marian.final_logits_bias)
    marian.tie_weights()
    settings = model.generation_config.to_dict()
    marian.generation_config = GenerationConfig.from_dict(
        {name: value for name, value in settings.items() if name not in Dials.names()}
    )
    return marian.eval()

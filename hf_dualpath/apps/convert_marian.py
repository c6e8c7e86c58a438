"""Start a dual-path model from two pretrained Marian translators, one for each direction.

    dualpath convert marian Helsinki-NLP/opus-mt-de-en Helsinki-NLP/opus-mt-en-de --output DIR \
        --source-language de --target-language en

FORWARD and BACKWARD are folders or Hub ids. With `--policy offline` the result translates exactly as they do; with the
other policies it is a warm start: the encoder becomes causal and the path is fresh, so train it:

    dualpath train multi30k-tiny --init_from DIR --train_source my.de --train_target my.en ...

The way back, for an offline model of ours (its encoder is bidirectional, as Marian's):

    dualpath convert to-marian RUN --direction de-en --output DIR

The model keeps its sizes and tokenizers, and the recipe says the rest. Marian's tokenizer becomes two that can be
streamed, one a language; reading it needs `pip install "hf_dualpath[marian]"`.

What one direction reads the other must write. Two Marian models have vocabularies of their own, so the backward
model's embeddings are carried over to the forward model's vocabulary by the tokens' text; what has no
counterpart starts at the mean.
"""

from argparse import Namespace
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import SafetensorError
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import GenerationConfig, MarianConfig, MarianMTModel, PreTrainedTokenizerFast

from ..inference.checkpoints import load_config, load_direction
from ..inference.hub_translators.marian import SHARED_FIELDS, to_marian
from ..inference.tokenization import SPECIAL_TOKENS, load_tokenizers, save_tokenizers, wrap_tokenizer
from ..model.configuration_dualpath import DualPathConfig, SiMTConfig
from ..model.modeling_dualpath import DualPathForConditionalGeneration
from ..model.policies_dualpath import POLICIES


def convert_config(marian: MarianConfig, policy: str) -> SiMTConfig:
    fields = {name: getattr(marian, name) for name in SHARED_FIELDS}
    return SiMTConfig(**fields, policy=policy, final_logits_bias=True)


def convert_weights(marian: MarianMTModel) -> dict[str, torch.Tensor]:
    """Marian's names are ours; only its table of positions is not kept."""
    return {name: tensor for name, tensor in marian.state_dict().items() if "embed_positions" not in name}


def carry_over(model: MarianMTModel, theirs: dict[str, int], ours: dict[str, int]) -> int:
    """Re-orders the rows of everything that is indexed by tokens; returns how many tokens had a counterpart."""
    size = max(ours.values()) + 1
    found = [(ours[token], theirs[token]) for token in ours if token in theirs]
    to, source = (torch.tensor(column) for column in zip(*found))
    for name, tensor in model.state_dict().items():
        if name.endswith(("shared.weight", "embed_tokens.weight", "lm_head.weight")):
            rows = tensor.mean(0, keepdim=True).repeat(size, 1)
            rows[to] = tensor[source]
            model.get_submodule(name.rpartition(".")[0]).weight = torch.nn.Parameter(rows)
        elif name == "final_logits_bias":
            bias = tensor.mean().repeat(1, size)
            bias[0, to] = tensor[0, source]
            model.final_logits_bias = bias
    model.config.vocab_size = model.config.decoder_vocab_size = size
    return len(found)


def convert(
    forward: MarianMTModel, backward: MarianMTModel, policy: str, source_language: str, target_language: str
) -> DualPathForConditionalGeneration:
    config = DualPathConfig(
        forward_config=convert_config(forward.config, policy),
        backward_config=convert_config(backward.config, policy),
        source_language=source_language,
        target_language=target_language,
        share_embeddings=False,
    )
    model = DualPathForConditionalGeneration(config)
    for direction, marian in ((model.forward_model, forward), (model.backward_model, backward)):
        missing, unexpected = direction.load_state_dict(convert_weights(marian), strict=False)
        missing = [name for name in missing if ".policy." not in name]
        if missing or unexpected:
            raise ValueError(f"The weights do not fit: missing {missing}, unexpected {unexpected}.")
        direction.tie_weights()
    settings = forward.generation_config.to_dict()
    if not POLICIES[policy].reads_everything:
        settings |= {"num_beams": 1, "early_stopping": False, "length_penalty": None}
    model.generation_config = GenerationConfig.from_dict(settings)
    return model


def load_marian(path: str) -> MarianMTModel:
    found = MarianConfig.get_config_dict(path)[0].get("model_type")
    if found != "marian":  # which transformers would load as a Marian model of the default size, with random weights
        raise ValueError(f"{path} is a checkpoint of type {found!r}, not a Marian translator.")
    load_config(path)  # refuses what asks for code
    try:
        model, info = MarianMTModel.from_pretrained(path, output_loading_info=True)
    except (SafetensorError, UnpicklingError, RuntimeError) as error:
        reason = "they are damaged, or of other sizes than its config.json says"
        raise ValueError(f"The weights in {path} cannot be used: {reason}.") from error
    missing = sorted(name for name in info["missing_keys"] if "embed_positions" not in name)
    if missing:
        raise ValueError(f"{path} lacks {len(missing)} weights of a Marian translator, the first is {missing[0]}.")
    return model


def load_tokenizer(path: str):
    """A `MarianTokenizer`, or None where the checkpoint has no tokenizer."""
    try:
        from transformers import MarianTokenizer

        return MarianTokenizer.from_pretrained(path)
    except ImportError as error:
        raise ValueError("Marian's tokenizers need sentencepiece: pip install 'hf_dualpath[marian]'.") from error
    except (OSError, TypeError):
        return None


NEVER = -1e4  # the score of a token that is worse than any way to spell it


def fast_tokenizer(spm_file: str, vocabulary: dict[str, int]) -> PreTrainedTokenizerFast:
    """One side of a Marian tokenizer: its SentencePiece model, with the ids of the one vocabulary of both sides."""
    from sentencepiece import sentencepiece_model_pb2

    spm = sentencepiece_model_pb2.ModelProto.FromString(Path(spm_file).read_bytes())
    if spm.trainer_spec.model_type != spm.trainer_spec.UNIGRAM:
        raise ValueError(f"{spm_file} is no unigram model.")
    scores = {piece.piece: piece.score for piece in spm.pieces if piece.type == piece.NORMAL}
    tokens = [(token, scores.get(token, NEVER)) for token in sorted(vocabulary, key=vocabulary.get)]
    tokenizer = Tokenizer(models.Unigram(tokens, vocabulary["<unk>"]))
    steps = [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("</s>|<pad>"), "<unk>")]
    if spm.normalizer_spec.precompiled_charsmap:
        steps.insert(0, normalizers.Precompiled(spm.normalizer_spec.precompiled_charsmap))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return wrap_tokenizer(tokenizer, "start")


def run(arguments: Namespace):
    forward, backward = (load_marian(path) for path in (arguments.forward, arguments.backward))
    tokenizers = [load_tokenizer(path) for path in (arguments.forward, arguments.backward)]
    if all(tokenizers):
        ours, theirs = (tokenizer.get_vocab() for tokenizer in tokenizers)
        if ours != theirs:
            count = carry_over(backward, theirs, ours)
            print(
                f"{count} of {len(ours)} tokens of the backward model "
                "were carried over to the forward model's vocabulary."
            )
    model = convert(forward, backward, arguments.policy, arguments.source_language, arguments.target_language)
    model.save_pretrained(arguments.output)
    if tokenizers[0] is not None:
        vocabulary = tokenizers[0].get_vocab()
        save_tokenizers(arguments.output, *(fast_tokenizer(file, vocabulary) for file in tokenizers[0].spm_files))
    elif found := our_tokenizers(arguments.forward, arguments.backward):
        save_tokenizers(arguments.output, *found)
    else:
        print(f"{arguments.forward} has no tokenizer: the new checkpoint has none either.")
    print(f"Wrote {arguments.output}.")


def our_tokenizers(forward: str, backward: str) -> tuple[PreTrainedTokenizerFast, ...] | None:
    """Those of a pair that [`run_back`] wrote."""
    try:
        found, other = load_tokenizers(forward), load_tokenizers(backward)
    except OSError:
        return None
    if [each.get_vocab() for each in found] != [each.get_vocab() for each in other[::-1]]:
        raise ValueError(f"{forward} and {backward} have other vocabularies: they cannot become one checkpoint.")
    return found


def run_back(arguments: Namespace):
    model, *tokenizers = load_direction(arguments.model, arguments.direction)
    to_marian(model).save_pretrained(arguments.output)
    save_tokenizers(arguments.output, *tokenizers)
    print(f"Wrote {arguments.output}: a MarianMTModel that translates {model.config.direction}.")

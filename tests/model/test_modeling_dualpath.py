import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from conftest import POLICIES, ROOT, TINY, dual_model, random_batch, single_model
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, BertConfig, BertModel

from hf_dualpath import (
    DualPathConfig,
    DualPathForConditionalGeneration,
    SiMTConfig,
    SiMTForConditionalGeneration,
    SiMTModel,
    dual_path_loss,
)


@pytest.fixture
def batch():
    (x, mask), (y, _) = random_batch([7, 4, 6]), random_batch([5, 6, 3])
    return x, mask, y.masked_fill(y == 0, -100)


# Configuration


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"policy": "wait_for_it"}, "policy"),
        ({"monotonic_attention": "soft"}, "monotonic_attention"),
        ({"d_model": 30}, "multiple"),
        ({"policy": "mma", "causal_encoder": False}, "causal_encoder"),
        ({"policy": "wait_k", "monotonic_attention": "hard_aligned"}, "hard_aligned"),
        ({"wait_k": 0}, "wait_k"),
        ({"noise_std": -1}, "noise_std"),
        ({"decoder_vocab_size": 50}, "share_encoder_decoder_embeddings"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
        ({"pad_token_id": None}, "pad_token_id"),
        ({"pad_token_id": 40}, "pad_token_id"),
        ({"pad_token_id": 1}, "never end a sentence"),
        ({"eos_token_id": [5, 0]}, "never end a sentence"),
    ],
)
def test_wrong_combinations_are_refused(settings, message):
    with pytest.raises(Exception, match=message):
        SiMTConfig(**(TINY | settings))


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"backward_config": TINY | {"vocab_size": 41}}, "mirror"),
        ({"backward_config": TINY | {"decoder_attention_heads": 2}}, "pairs"),
        ({"backward_config": TINY | {"policy": "wait_k"}}, "one policy"),
        ({"backward_config": TINY | {"eos_token_id": 2}}, "eos_token_id"),
        ({"source_language": "de", "target_language": "de"}, "both"),
        ({"backward_config": TINY | {"d_model": 64}, "share_embeddings": True}, "share_embeddings"),
    ],
)
def test_wrong_pairs_are_refused(settings, message):
    with pytest.raises(Exception, match=message):
        DualPathConfig(forward_config=TINY, **settings)


def test_config_round_trip(tmp_path):
    config = DualPathConfig(forward_config=TINY | {"noise_std": 0}, source_language="de", target_language="en")
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert loaded.to_diff_dict() == config.to_diff_dict() and isinstance(loaded.backward_config, SiMTConfig)
    assert loaded.directions == ("de-en", "en-de")


# Forward


@pytest.mark.parametrize("attention", ["infinite_lookback", "hard_aligned"])
@pytest.mark.parametrize("policy", POLICIES)
def test_shapes_and_gradients(policy, attention, batch):
    if attention == "hard_aligned" and policy not in ("mma", "shared_path"):
        pytest.skip("refused by the configuration")
    model = dual_model(policy=policy, monotonic_attention=attention, energy_bias=-1.0)
    output = model(*batch)
    dual_path_loss(output, *batch, dual_weight=float(policy == "shared_path")).total.backward()
    assert all(parameter.grad is not None for parameter in model.parameters()), "every weight takes part"
    for one, target, source in ((output.forward_output, 6, 7), (output.backward_output, 7, 6)):
        assert one.logits.shape == (3, target, 40)
        assert len(one.alphas) == (3 if policy == "mma" else 1)
        for alpha in one.alphas:
            assert alpha.shape == (3, 4, target, source)
            torch.testing.assert_close(alpha.sum(-1), torch.ones(3, 4, target))
        assert one.encoder_last_hidden_state.shape == (3, source, 32)


@pytest.mark.parametrize("policy", ["wait_k", "mma", "shared_path"])
@pytest.mark.parametrize("train", [True, False])
def test_a_sentence_does_not_depend_on_its_batch_mates(policy, train, batch):
    x, mask, y = batch
    model = dual_model(policy=policy, noise_std=0.0).train(train)
    together = model(x, mask, y)
    for row, (source, target) in enumerate(((7, 5), (4, 6), (6, 3))):
        alone = model(x[row : row + 1, :source], None, y[row : row + 1, :target])
        torch.testing.assert_close(
            alone.forward_output.logits[0], together.forward_output.logits[row, :target], atol=1e-5, rtol=0
        )
        torch.testing.assert_close(
            alone.backward_output.logits[0], together.backward_output.logits[row, :source], atol=1e-5, rtol=0
        )


def test_encoder_is_causal():
    x, _ = random_batch([8])
    encoder = single_model().eval().model.encoder
    torch.testing.assert_close(
        encoder(x).last_hidden_state[:, :5], encoder(x[:, :5]).last_hidden_state, atol=1e-6, rtol=0
    )


def test_noise_and_dropout_only_in_training(batch):
    model = dual_model(noise_std=1.0, dropout=0.3)
    train = [model(*batch).forward_output.logits for _ in range(2)]
    model.eval()
    evaluation = [model(*batch).forward_output.logits for _ in range(2)]
    assert not torch.equal(*train) and torch.equal(*evaluation)


def test_dropout_keeps_the_mean_and_the_rate():
    from hf_dualpath.model.layers_dualpath import dropout

    for p in (0.1, 0.3, 0.5):
        kept = dropout(torch.ones(200_001), p, True)
        assert (kept == 0).float().mean().item() == pytest.approx(p, abs=0.01)
        assert kept.mean().item() == pytest.approx(1, abs=0.02)


def test_fresh_weights_are_scaled(batch):
    """Embeddings have variance 1 after scaling, and positions are in [-1, 1]."""
    model = single_model(vocab_size=2000, d_model=64)
    scaled = model.model.shared.weight * model.model.encoder.embed_scale
    assert scaled.std().item() == pytest.approx(1, abs=0.05)
    assert model.model.encoder.embed_positions.weight.abs().max() <= 1


def test_one_table_for_both_directions(batch):
    model = dual_model()
    shared = model.forward_model.model.shared.weight
    for direction in (model.forward_model, model.backward_model):
        for module in (direction.model.encoder.embed_tokens, direction.model.decoder.embed_tokens, direction.lm_head):
            assert module.weight is shared


def test_two_vocabularies(batch, tmp_path):
    x, mask, y = batch
    model = dual_model(decoder_vocab_size=50, share_encoder_decoder_embeddings=False)
    assert model(x, mask, y).forward_output.logits.shape[-1] == 50
    assert model(x, mask, y).backward_output.logits.shape[-1] == 40
    model.eval().save_pretrained(tmp_path)
    loaded = DualPathForConditionalGeneration.from_pretrained(tmp_path)
    assert torch.equal(loaded(x, mask, y).backward_output.logits, model(x, mask, y).backward_output.logits)


def test_labels_give_the_mean_cross_entropy(batch):
    x, mask, y = batch
    output = single_model(noise_std=0.0)(x, mask, labels=y)
    expected = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), y.flatten())
    torch.testing.assert_close(output.loss, expected)


def test_too_long_a_sentence_is_refused():
    with pytest.raises(ValueError, match="max_position_embeddings"):
        single_model()(torch.full((1, 65), 5), decoder_input_ids=torch.zeros(1, 1, dtype=torch.long))


# Saving and loading


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shard", ["5GB", "50KB"])
def test_save_and_load_are_exact(dtype, shard, tmp_path):
    model = dual_model(energy_bias=0.5).to(dtype)
    model.generation_config.write_threshold = 0.4
    model.save_pretrained(tmp_path, max_shard_size=shard)
    assert (shard == "50KB") == (tmp_path / "model.safetensors.index.json").is_file()
    assert not list(tmp_path.glob("*.bin"))
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype="auto")
    assert isinstance(loaded, DualPathForConditionalGeneration) and loaded.dtype == dtype
    assert loaded.generation_config.write_threshold == 0.4
    ours, theirs = model.state_dict(), loaded.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)
    positions = [m.model.encoder.embed_positions.weight for m in (model.forward_model, loaded.forward_model)]
    assert torch.equal(*(p.float() for p in positions))


@pytest.mark.parametrize("name", ["de-en", "en-de"])
def test_one_direction_of_a_dual_checkpoint(name, tmp_path, batch):
    model = dual_model().eval()
    model.save_pretrained(tmp_path / "dual")
    alone = SiMTForConditionalGeneration.from_pretrained(tmp_path / "dual", direction=name)
    assert sum(p.numel() for p in alone.parameters()) < sum(p.numel() for p in model.parameters())
    x, mask, y = batch
    expected = model.direction(name)(x, mask, labels=y).logits
    assert torch.equal(alone(x, mask, labels=y).logits, expected)
    model.direction(name).save_pretrained(tmp_path / "single")
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "single")
    assert torch.equal(again(x, mask, labels=y).logits, expected)


@pytest.mark.parametrize("name", ["de-en", "en-de"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_direction_that_was_loaded_alone_saves_its_own_names(name, shared, tmp_path, batch):
    settings = {} if shared else {"decoder_vocab_size": 50, "share_encoder_decoder_embeddings": False}
    dual_model(**settings).save_pretrained(tmp_path / "dual")
    alone = SiMTForConditionalGeneration.from_pretrained(tmp_path / "dual", direction=name)
    alone.save_pretrained(tmp_path / "alone")
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "alone")
    ours, theirs = alone.state_dict(), again.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[key], theirs[key]) for key in ours)
    assert again.config.direction == name


def test_a_direction_has_its_own_languages(tmp_path):
    model = dual_model()
    for name, source, target in (("de-en", "de", "en"), ("en-de", "en", "de")):
        model.direction(name).save_pretrained(tmp_path / name)
        config = AutoConfig.from_pretrained(tmp_path / name)
        assert (config.source_language, config.target_language, config.direction) == (source, target, name)


def test_directions_decode_as_their_checkpoint_says(tmp_path, batch):
    x, mask, _ = batch
    model = dual_model().eval()
    model.generation_config.update(max_new_tokens=3, min_new_tokens=3, write_threshold=0.25, allow_custom_entries=True)
    model.save_pretrained(tmp_path)
    loaded = DualPathForConditionalGeneration.from_pretrained(tmp_path)
    for direction in (loaded.forward_model, loaded.backward_model):
        assert direction.generation_config.write_threshold == 0.25
        assert direction.generate(x, mask).shape[1] == 1 + 3
    stream = loaded.open_stream()
    assert len([action for action in [*stream.push(x[0].tolist()), *stream.finish()] if action is not None]) == 3
    other = loaded.open_stream(direction="en-de")
    assert other.engine.backend.model is loaded.backward_model


def test_two_directions_need_both_texts(batch):
    with pytest.raises(ValueError, match="Two directions need both texts: give `labels`"):
        dual_model()(batch[0])


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("wrong", [[0, 1, 1, 1], [1, 0, 1, 1], [0, 0, 0, 0]], ids=["left", "hole", "nothing"])
@pytest.mark.parametrize("make", [single_model, dual_model])
def test_only_right_padding(make, wrong, train):
    ids, mask = torch.full((2, 4), 5), torch.tensor([[1, 1, 1, 1], wrong])
    model = make().train(train)
    with pytest.raises(ValueError, match="padding on the right only"):
        model(ids, mask, labels=ids)
    for padded in (mask.flip(0), mask[1:]):
        with pytest.raises(ValueError, match="padding on the right only"):
            model(ids[: len(padded)], padded, labels=ids[: len(padded)])


def test_padding_is_told_from_tokens_where_there_is_no_mask():
    """As `generate` and both directions together do."""
    model = single_model().eval()
    alone = model(torch.tensor([[5, 6, 1]]), labels=torch.tensor([[7, 1]])).loss
    padded = model(torch.tensor([[5, 6, 1, 0, 0]]), labels=torch.tensor([[7, 1]])).loss
    torch.testing.assert_close(padded, alone)
    with pytest.raises(ValueError, match="padding on the right only"):
        model(torch.tensor([[0, 5, 6, 1]]), labels=torch.tensor([[7, 1]]))
    with pytest.raises(ValueError, match="padding on the right only"):
        model.model(torch.full((1, 3), 5), torch.tensor([[0, 1, 1]]), torch.full((1, 2), 5))


def test_the_backward_direction_needs_right_padding_too():
    ids = torch.full((1, 4), 5)
    for hole in (0, -100):
        with pytest.raises(ValueError, match="padding on the right only"):
            dual_model()(ids, None, torch.tensor([[5, hole, 5, 1]]))


def test_auto_model_gives_the_base_model(tmp_path):
    single_model().save_pretrained(tmp_path)
    assert isinstance(AutoModel.from_pretrained(tmp_path), SiMTModel)


def test_bad_checkpoints_get_a_clear_error(tmp_path):
    dual_model().save_pretrained(tmp_path / "dual")
    with pytest.raises(ValueError, match="direction="):
        SiMTForConditionalGeneration.from_pretrained(tmp_path / "dual")
    with pytest.raises(ValueError, match="'de-en' and 'en-de'"):
        SiMTForConditionalGeneration.from_pretrained(tmp_path / "dual", direction="fr-en")
    small = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=9)
    BertModel(small).save_pretrained(tmp_path / "bert")
    for cls in (SiMTForConditionalGeneration, DualPathForConditionalGeneration):
        with pytest.raises(ValueError, match="'bert'"):
            cls.from_pretrained(tmp_path / "bert")
    weights = tmp_path / "dual" / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(OSError, match="cut short"):
        DualPathForConditionalGeneration.from_pretrained(tmp_path / "dual")
    from safetensors.torch import load, save_file

    partial = {name: tensor for name, tensor in load(whole).items() if "fc1" not in name}
    save_file(partial, weights, metadata={"format": "pt"})
    with pytest.raises(ValueError, match="lacks .* weights"):
        DualPathForConditionalGeneration.from_pretrained(tmp_path / "dual")


REMOTE = """
import sys, torch
from transformers import AutoModelForSeq2SeqLM
if {hidden}:
    sys.modules["hf_dualpath"] = None  # as if it were not installed
else:
    import hf_dualpath
results = []
for path in sys.argv[1:]:
    model = AutoModelForSeq2SeqLM.from_pretrained(path, trust_remote_code=True)
    assert type(model).__module__.startswith("transformers_modules") or not {hidden}, type(model)
    x = torch.arange(3, 9)[None]
    model.train()
    out = model(x, None, x)
    (out.forward_output.alphas[0].sum() + out.backward_output.logits.sum()).backward()
    model.eval()
    results.append(model(x, None, x).forward_output.logits.sum().item())
    print(model.generate(x).shape)
print("logits", *results)
"""


@pytest.mark.parametrize("hidden", [True, False])
def test_remote_code(hidden, tmp_path):
    """A checkpoint brings its code: two of them in one process, without the package and beside it."""
    models = [dual_model().eval() for _ in range(2)]
    for index, model in enumerate(models):
        model.save_pretrained(tmp_path / f"model{index}")
        files = {path.name for path in (tmp_path / f"model{index}").glob("*.py")}
        assert files == {path.name for path in (ROOT / "hf_dualpath/model").glob("*.py")} - {"__init__.py"}
        assert "auto_map" in json.loads((tmp_path / f"model{index}" / "config.json").read_text())
    result = subprocess.run(
        [
            sys.executable,
            "-c",
            textwrap.dedent(REMOTE.format(hidden=hidden)),
            *(str(tmp_path / f"model{i}") for i in range(2)),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"},
    )
    assert result.returncode == 0, result.stderr[-2000:]
    sums = [float(value) for value in result.stdout.strip().splitlines()[-1].split()[1:]]
    x = torch.arange(3, 9)[None]
    assert sums == pytest.approx([m(x, None, x).forward_output.logits.sum().item() for m in models], abs=1e-4)


# What the library offers


def test_gradient_checkpointing_changes_nothing(batch):
    gradients = []
    for checkpointing in (False, True):
        torch.manual_seed(3)
        model = dual_model(noise_std=0.0)
        if checkpointing:
            model.gradient_checkpointing_enable()
        dual_path_loss(model(*batch), *batch, latency_weight=0.1).total.backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, checkpointed in zip(*gradients):
        torch.testing.assert_close(plain, checkpointed)


@pytest.mark.parametrize("policy", ["shared_path", "mma"])
def test_compiles_without_a_graph_break(policy, batch):
    model = dual_model(noise_std=0.0, policy=policy)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(compiled(*batch).forward_output.logits, model(*batch).forward_output.logits):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_eager_and_sdpa_agree(batch):
    model = dual_model().eval()
    results = []
    for implementation in ("sdpa", "eager"):
        model.set_attn_implementation(implementation)
        results.append(model(*batch).backward_output.logits)
    torch.testing.assert_close(*results, atol=1e-5, rtol=0)


def test_autocast_keeps_the_path_in_float32(batch):
    model = dual_model()
    with torch.autocast("cpu", torch.bfloat16):
        output = model(*batch).forward_output
    assert output.selection_probabilities[0].dtype == output.alphas[0].dtype == torch.float32
    assert output.logits.dtype == torch.bfloat16
    dual_path_loss(model(*batch), *batch).total.backward()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype, batch):
    output = dual_model().to(dtype)(*batch)
    assert output.forward_output.logits.isfinite().all() and output.forward_output.alphas[0].dtype == torch.float32


@pytest.mark.parametrize("make", [dual_model, single_model])
def test_resize_token_embeddings(make, batch):
    model = make()
    model.resize_token_embeddings(45)
    x, mask, y = batch
    output = model(x, mask, labels=y)
    logits = output.forward_output.logits if make is dual_model else output.logits
    assert logits.shape[-1] == 45
    config = model.config.backward_config if make is dual_model else model.config
    assert config.vocab_size == config.decoder_vocab_size == 45
    if make is dual_model:
        assert model.backward_model.lm_head.weight is model.forward_model.model.shared.weight


def test_device_map(tmp_path, batch):
    model = dual_model().eval()
    model.save_pretrained(tmp_path)
    loaded = DualPathForConditionalGeneration.from_pretrained(tmp_path, device_map="cpu")
    assert torch.equal(loaded(*batch).forward_output.logits, model(*batch).forward_output.logits)


def test_beam_search_of_the_offline_policy(batch):
    x, mask, _ = batch
    model = single_model(policy="offline").eval()
    result = model.generate(x, mask, num_beams=3, max_new_tokens=8, num_return_sequences=2)
    assert result.shape[0] == 6


def test_attentions_on_request(batch):
    x, mask, y = batch
    model = single_model().eval()
    model.set_attn_implementation("eager")
    output = model(x, mask, labels=y, output_attentions=True, output_hidden_states=True)
    assert len(output.cross_attentions) == 3 and output.cross_attentions[0].shape == (3, 4, 6, 7)
    assert len(output.encoder_attentions) == 2 and len(output.decoder_hidden_states) == 4
    stops = output.alphas[0].argmax(-1)
    beyond = torch.arange(7) > stops[..., None]
    assert (output.cross_attentions[2][beyond] == 0).all(), "no head looks beyond its stop, in any layer"

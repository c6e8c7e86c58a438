import json

import pytest
import torch
from conftest import FIXTURES, POLICIES, dual_model, golden, random_batch, single_model
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import GenerationConfig, LogitsProcessor, WatermarkingConfig
from transformers.generation.streamers import BaseStreamer

from hf_dualpath import SiMTForConditionalGeneration
from hf_dualpath.apps.convert_fairseq import convert
from hf_dualpath.model.generation_dualpath import HARMLESS, HONOURED, REFUSED, TOKENS


SIMULTANEOUS = [policy for policy in POLICIES if policy != "offline"]
LENGTHS = [9, 4, 7, 1, 6]


def lively_model(**overrides) -> SiMTForConditionalGeneration:
    """A random model whose selection probabilities and tokens vary from step to step."""
    model = single_model(**overrides).eval()
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.data.mul_(3.0 if "policy" in name else 1.5)
    return model


def stream(model, tokens: list[int], cuts: list[int] = (), **options):
    """Actions of a stream that gets the tokens in pieces."""
    opened = model.open_stream(**options)
    actions, start = [], 0
    for cut in [*sorted(cuts), len(tokens)]:
        actions += opened.push(tokens[start:cut])
        start = cut
    return actions + list(opened.finish())


def written(actions):
    return [action for action in actions if action is not None]


# The authors' decoding


@pytest.fixture(scope="module")
def authors():
    weights, recorded = golden("exact_a")
    model = convert({k[2:]: v for k, v in weights.items() if k.startswith("w.")}, recorded).eval().float()
    sentences = json.loads((FIXTURES / "dualpath_eval_a.json").read_text())["sentences"]
    return model, sentences, load_file(FIXTURES / "dualpath_eval_a.safetensors")


AUTHORS_OPTIONS = {"max_new_tokens": 21, "min_new_tokens": 1, "forced_eos_token_id": 2}


@pytest.mark.parametrize("padded", [False, True])
def test_golden_decoding(authors, padded):
    model, sentences, recorded = authors
    longest = max(len(sentence["src"]) for sentence in sentences)
    batches = [list(range(len(sentences)))] if padded else [[index] for index in range(len(sentences))]
    for batch in batches:
        rows = [sentences[index]["src"] for index in batch]
        ids = torch.tensor([row + [1] * (longest - len(row)) for row in rows] if padded else rows)
        output = model.generate(ids, return_dict_in_generate=True, **AUTHORS_OPTIONS)
        for row, index in enumerate(batch):
            assert output.sequences[row, 1:].tolist() == sentences[index]["hypo"]
            assert output.path[row].tolist() == sentences[index]["g_1based"]
            stops = recorded[f"s{index}.hard_alpha"].argmax(-1)
            assert torch.equal(output.head_stops[row, 0], stops)


def test_golden_stream(authors):
    model, sentences, _ = authors
    for sentence in sentences:
        actions = stream(model.direction("forward"), sentence["src"], range(1, 3), **AUTHORS_OPTIONS)
        assert [token for token, _ in written(actions)] == sentence["hypo"]
        assert [read for _, read in written(actions)] == sentence["g_1based"]


# Batched, alone and streamed are the same


@pytest.mark.parametrize("attention", ["infinite_lookback", "hard_aligned"])
@pytest.mark.parametrize("policy", SIMULTANEOUS)
def test_batched_equals_alone_equals_streamed(policy, attention):
    if policy in ("wait_k", "static_rw") and attention == "hard_aligned":
        pytest.skip("refused by the configuration")
    for seed in range(3):
        torch.manual_seed(seed)
        model = lively_model(policy=policy, monotonic_attention=attention)
        ids, mask = random_batch(LENGTHS)
        together = model.generate(ids, mask, return_dict_in_generate=True)
        for row, length in enumerate(LENGTHS):
            alone = model.generate(ids[row : row + 1, :length], return_dict_in_generate=True)
            count = alone.sequences.shape[1] - 1
            assert together.sequences[row, 1 : count + 1].tolist() == alone.sequences[0, 1:].tolist()
            assert (together.sequences[row, count + 1 :] == 0).all()
            assert together.path[row, :count].tolist() == alone.path[0].tolist()
            assert (together.path[row, count:] == 0).all()
            actions = written(stream(model, ids[row, :length].tolist(), range(1, length)))
            assert [token for token, _ in actions] == alone.sequences[0, 1:].tolist()
            assert [read for _, read in actions] == alone.path[0].tolist()


@pytest.mark.parametrize("policy", SIMULTANEOUS)
@given(cuts=st.lists(st.integers(0, 9), max_size=6), seed=st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_any_cutting_gives_the_same_actions(policy, cuts, seed):
    torch.manual_seed(seed)
    model = lively_model(policy=policy)
    tokens = random_batch([9])[0][0].tolist()
    assert stream(model, tokens, cuts) == stream(model, tokens)


@pytest.mark.parametrize("policy", SIMULTANEOUS)
def test_actions_are_a_path(policy):
    """Reads and writes in order: g never decreases, is never more than was read, and is what was read."""
    for seed in range(4):
        torch.manual_seed(seed)
        actions = stream(lively_model(policy=policy), random_batch([9])[0][0].tolist(), range(1, 9))
        read, previous = 0, 1
        for action in actions:
            if action is None:
                read += 1
            else:
                assert previous <= action[1] == read
                previous = action[1]


def test_a_write_comes_as_early_as_the_policy_allows():
    """Every token is written right after the push that brings the last source token it needs."""
    for policy in SIMULTANEOUS:
        torch.manual_seed(2)
        model = lively_model(policy=policy)
        tokens = random_batch([9])[0][0].tolist()
        path = model.generate(torch.tensor([tokens]), return_dict_in_generate=True).path[0].tolist()
        opened, seen = model.open_stream(), []
        for count, token in enumerate(tokens[:-1], 1):
            seen += written(opened.push([token]))
            # Without the end in sight, a stop at the newest token is a decision, not a default.
            expected = [g for g in path if g <= count]
            assert [read for _, read in seen] == expected[: len(seen)]
            assert len(seen) >= len([g for g in path if g < count])
        seen += written(opened.push(tokens[-1:])) + written(opened.finish())
        assert [read for _, read in seen] == path


@pytest.mark.parametrize("policy", SIMULTANEOUS)
def test_interleaved_streams_do_not_meet(policy):
    model = lively_model(policy=policy)
    sources = [random_batch([9])[0][0].tolist() for _ in range(2)]
    alone = [stream(model, source, range(1, 9)) for source in sources]
    streams = [model.open_stream() for _ in sources]
    together = [[], []]
    for position in range(9):
        for actions, opened, source in zip(together, streams, sources):
            actions += opened.push([source[position]])
    for actions, opened in zip(together, streams):
        actions += opened.finish()
    assert together == alone


# Nothing is computed twice


@pytest.mark.parametrize("policy", SIMULTANEOUS)
def test_each_token_passes_once(policy, monkeypatch):
    """Each source token passes the encoder once, each target token the decoder once, and a policy sees each source
    token once, but for those from its earliest head's stop on, which each new target token asks about again."""
    model = lively_model(policy=policy)
    tokens = random_batch([9])[0][0].tolist()
    encoder_tokens, decoder_tokens, asked = [], [], []
    for stack, counts in ((model.model.encoder, encoder_tokens), (model.model.decoder, decoder_tokens)):
        stack.embed_tokens.register_forward_hook(lambda m, args, out, counts=counts: counts.append(args[0].numel()))
    for layer_policy in [layer.policy for layer in model.model.decoder.layers if layer.policy]:
        original = layer_policy.live_stop

        def count(query, key, start, previous, *rest, original=original):
            asked.append((start, int(previous.min()), opened.engine.available[0]))
            return original(query, key, start, previous, *rest)

        monkeypatch.setattr(layer_policy, "live_stop", count)
    opened = model.open_stream()
    actions = []
    for token in tokens:
        actions += opened.push([token])
    actions += opened.finish()
    writes = written(actions)
    assert sum(encoder_tokens) <= len(tokens) == actions.count(None)
    assert sum(decoder_tokens) == len(writes) + 1  # with the start
    assert len(opened.path) == len(writes)
    layers = 3 if policy == "mma" else 1
    fresh = [question for question in asked if question[0] == question[1]]
    assert len(fresh) <= layers * (len(writes) + 1)
    assert all(start == available - 1 for start, previous, available in asked if start > previous)


def test_mma_resumes_in_the_layer_that_waited(monkeypatch):
    """While the last layer waits, no earlier layer computes anything."""
    model = lively_model(policy="mma")
    calls = []
    for index, layer in enumerate(model.model.decoder.layers):
        original = layer.policy.selection_probability

        def record(query, key, original=original, index=index):
            calls.append(index)
            p = original(query, key)
            return torch.ones_like(p) if index < 2 else torch.zeros_like(p)

        monkeypatch.setattr(layer.policy, "selection_probability", record)
    opened = model.open_stream()
    list(opened.push([5]))
    calls.clear()
    list(opened.push([6]))
    list(opened.push([7, 8]))
    assert calls == [2, 2]


# Dials


@pytest.mark.parametrize("policy", ["mma", "shared_path"])
@pytest.mark.parametrize("k", [1, 3, 5])
def test_both_lags_at_k_are_wait_k(policy, k):
    ids, mask = random_batch(LENGTHS)
    output = lively_model(policy=policy).generate(ids, mask, min_lag=k, max_lag=k, return_dict_in_generate=True)
    for row, length in enumerate(LENGTHS):
        path = [g for g in output.path[row].tolist() if g]
        assert path == [min(k + i, length) for i in range(len(path))]


@pytest.mark.parametrize("policy", SIMULTANEOUS)
def test_lags_bound_the_path(policy):
    ids, mask = random_batch(LENGTHS)
    model = lively_model(policy=policy)
    output = model.generate(ids, mask, min_lag=2, max_lag=4, return_dict_in_generate=True)
    for row, length in enumerate(LENGTHS):
        for i, g in enumerate(g for g in output.path[row].tolist() if g):
            assert min(i + 2, length) <= g <= min(i + 4, length)
        cut = stream(model, ids[row, :length].tolist(), range(1, length), min_lag=2, max_lag=4)
        assert [g for _, g in written(cut)] == [g for g in output.path[row].tolist() if g]


def test_a_lower_threshold_writes_earlier():
    ids, mask = random_batch([20] * 16)
    means = []
    for threshold in (0.2, 0.4, 0.6, 0.8, 1.0):
        totals = []
        for seed in range(3):
            torch.manual_seed(seed)
            model = lively_model()
            path = model.generate(
                ids,
                mask,
                write_threshold=threshold,
                max_new_tokens=20,
                min_new_tokens=20,
                return_dict_in_generate=True,
            ).path
            totals.append(path.float().mean().item())
        means.append(sum(totals))
    assert means == sorted(means) and means[0] < means[-1]


@pytest.mark.parametrize("k", [1, 4])
def test_any_k_on_a_wait_k_model(k):
    ids, mask = random_batch(LENGTHS)
    output = lively_model(policy="wait_k").generate(ids, mask, wait_k=k, return_dict_in_generate=True)
    assert output.path[0, 0] == k
    assert output.head_stops.shape[:3] == (5, 1, 1)


@pytest.mark.parametrize(
    "dials, message",
    [
        ({"write_threshold": 0.0}, "write_threshold"),
        ({"write_threshold": 1.1}, "write_threshold"),
        ({"min_lag": 0}, "min_lag"),
        ({"min_lag": 3, "max_lag": 2}, "larger than"),
        *(({name: 10**30}, f"`{name}` .* at most") for name in ("min_lag", "max_lag")),
        ({"min_lag": 2**63 - 1}, "min_lag"),
        ({"wait_k": 2}, "shared_path policy"),
    ],
)
def test_wrong_dials_are_refused(dials, message):
    with pytest.raises(ValueError, match=message):
        lively_model().generate(torch.tensor([[5, 1]]), **dials)


def test_dials_live_in_the_generation_config(tmp_path):
    model = lively_model()
    ids, mask = random_batch(LENGTHS)
    model.generation_config.min_lag = 3
    model.generation_config.max_lag = 3
    model.save_pretrained(tmp_path)
    loaded = SiMTForConditionalGeneration.from_pretrained(tmp_path)
    assert loaded.generate(ids, mask, return_dict_in_generate=True).path[0, :3].tolist() == [3, 4, 5]
    config = GenerationConfig(min_lag=1, max_lag=1, return_dict_in_generate=True)
    assert loaded.generate(ids, mask, generation_config=config).path[0, :3].tolist() == [1, 2, 3]


# What transformers users expect


def test_lengths_and_scores():
    model = lively_model()
    ids, mask = random_batch(LENGTHS)
    output = model.generate(
        ids,
        mask,
        min_new_tokens=6,
        max_new_tokens=6,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
    )
    assert output.sequences.shape == (5, 7) and len(output.scores) == len(output.logits) == 6
    assert (output.scores[0][:, 1] == -torch.inf).all() and output.logits[0].isfinite().all()
    assert model.generate(ids, mask, max_length=4).shape[1] <= 4


def test_without_a_limit_it_ends_at_twice_the_source():
    model = lively_model()
    model.generation_config.bad_words_ids = [[1]]  # never ends by itself
    output = model.generate(torch.tensor([[5, 6, 1]]), return_dict_in_generate=True)
    assert output.sequences.shape[1] - 1 == 2 * int(output.path[0, -1]) + 10


def test_processors_are_honoured():
    model = lively_model()
    ids, mask = random_batch(LENGTHS)
    plain = model.generate(ids, mask, max_new_tokens=12)
    favourite = int(plain[0, 1])
    assert favourite not in model.generate(ids, mask, max_new_tokens=12, bad_words_ids=[[favourite]])
    unique = model.generate(ids, mask, max_new_tokens=12, no_repeat_ngram_size=1)[0, 1:].tolist()
    unique = [token for token in unique if token > 1]
    assert len(set(unique)) == len(unique)
    assert not torch.equal(model.generate(ids, mask, max_new_tokens=12, repetition_penalty=5.0), plain)

    class Only(LogitsProcessor):
        def __call__(self, input_ids, scores):
            scores[:, :7], scores[:, 8:] = -torch.inf, -torch.inf
            return scores

    assert (model.generate(ids, mask, max_new_tokens=3, logits_processor=[Only()])[:, 1:] == 7).all()
    assert [
        token for token, _ in written(stream(model, ids[0].tolist(), max_new_tokens=3, logits_processor=[Only()]))
    ] == [7] * 3


def test_streamer():
    class Recorder(BaseStreamer):
        def __init__(self):
            self.tokens, self.ended = [], False

        def put(self, value):
            self.tokens += value.flatten().tolist()

        def end(self):
            self.ended = True

    model, recorder = lively_model(), Recorder()
    result = model.generate(torch.tensor([[5, 6, 7, 1]]), streamer=recorder)
    assert recorder.tokens == result[0].tolist() and recorder.ended


def test_every_field_is_honoured_refused_or_harmless():
    lists = [*HONOURED, *REFUSED, *HARMLESS]
    assert len(set(lists)) == len(lists)
    fields = set(vars(GenerationConfig()))
    assert fields == set(lists), "a new field of the library: honour it or refuse it"


OTHER_VALUES = {"stop_strings": "dog", "watermarking_config": WatermarkingConfig()}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused(name):
    usual, _ = REFUSED[name]
    option = {name: OTHER_VALUES.get(name, True if usual is False else 2)}
    model = lively_model()
    with pytest.raises(ValueError, match=name):
        model.generate(torch.tensor([[5, 6, 1]]), **option)
    with pytest.raises(ValueError, match=name):
        model.open_stream(**option)
    if usual is not None:
        model.generate(torch.tensor([[5, 6, 1]]), **{name: usual})


@pytest.mark.parametrize("name", ["colour", "stopping_criteria", "assistant_model", "tokenizer"])
def test_what_is_unknown_is_refused(name):
    with pytest.raises(ValueError, match=f"does not know `{name}`"):
        lively_model().generate(torch.tensor([[5, 6, 1]]), **{name: "red"})


def test_special_tokens_are_honoured():
    model, ids = lively_model(), torch.tensor([[5, 6, 7, 8, 9, 1], [5, 6, 1, 0, 0, 0]])
    started = model.generate(ids, decoder_start_token_id=9, max_new_tokens=5)
    assert started[:, 0].tolist() == [9, 9]
    assert not torch.equal(started[:, 1:], model.generate(ids, max_new_tokens=5)[:, 1:]), "another start, other words"
    opened = written(stream(model, ids[0].tolist(), decoder_start_token_id=9, max_new_tokens=5))
    assert [token for token, _ in opened] == started[0, 1 : 1 + len(opened)].tolist()
    first = int(started[0, 1])
    ended = model.generate(ids[:1], decoder_start_token_id=9, eos_token_id=[first, 1])
    assert ended[0].tolist() == [9, first]
    for padding in (0, [1, 0]):
        with pytest.raises(ValueError, match="never written"):
            model.generate(ids, eos_token_id=padding)
    for name in TOKENS:
        for wrong in (40, True):
            with pytest.raises(ValueError, match=f"`{name}` is a token of the vocabulary"):
                model.generate(ids, **{name: wrong})


def test_biases_of_tokens_are_honoured():
    model, ids = lively_model(), torch.tensor([[5, 6, 7, 8, 9, 1]])

    def words(**given) -> list[int]:
        return model.generate(ids, max_new_tokens=5, min_new_tokens=5, **given)[0, 1:].tolist()

    plain = words()
    assert words(forced_bos_token_id=7)[0] == 7
    assert words(sequence_bias={(7,): 100.0}) == [7] * 5
    assert words(suppress_tokens=[plain[0]])[0] != plain[0] and plain[0] not in words(suppress_tokens=[plain[0]])
    assert words(begin_suppress_tokens=[plain[0]])[0] != plain[0]
    assert model.generate(ids, max_new_tokens=4, forced_eos_token_id=1, bad_words_ids=[[11]])[0, -1] == 1
    decayed = model.generate(ids, max_new_tokens=12, exponential_decay_length_penalty=(2, 1e6))
    assert decayed.shape[1] <= 5


def test_left_padding_is_refused():
    with pytest.raises(ValueError, match="on the right"):
        lively_model().generate(torch.tensor([[0, 5, 6, 1]]))


def test_offline_has_no_stream_and_no_dials():
    model = single_model(policy="offline").eval()
    with pytest.raises(ValueError, match="offline"):
        model.open_stream()
    with pytest.raises(ValueError, match="offline"):
        model.generate(torch.tensor([[5, 1]]), write_threshold=0.3)


def test_directions_of_a_dual_model():
    model = dual_model().eval()
    ids, mask = random_batch(LENGTHS)
    for direction, one in (("de-en", model.forward_model), ("en-de", model.backward_model)):
        assert torch.equal(model.generate(ids, mask, direction=direction), one.generate(ids, mask))
    assert torch.equal(model.generate(ids, mask), model.generate(ids, mask, direction="de-en"))
    with pytest.raises(ValueError, match="'de-en' and 'en-de'"):
        model.generate(ids, mask, direction="fr-en")


def test_the_hard_path_of_forward_is_the_path_of_generate():
    """Teacher-forcing what was generated through eval-mode forward gives the same stops."""
    for policy in ("shared_path", "mma"):
        model = lively_model(policy=policy)
        ids, _ = random_batch([9])
        output = model.generate(ids, return_dict_in_generate=True)
        with torch.no_grad():
            forced = model(ids, decoder_input_ids=output.sequences[:, :-1])
        stops = torch.stack([alpha.argmax(-1) for alpha in forced.alphas], 1)
        assert torch.equal(stops, output.head_stops)


@pytest.mark.parametrize(
    "settings", [{"min_length": 4}, {"min_new_tokens": 4}, {"min_length": 2, "min_new_tokens": 3}]
)
def test_no_end_too_early_as_the_library_says_it(settings):
    model = lively_model()
    config, processors = model.prepare_simultaneous(None, None, **settings)
    theirs = model._get_logits_processor(config, 1, device="cpu")
    assert (config.min_length or None, config.min_new_tokens) == tuple(
        map(settings.get, ("min_length", "min_new_tokens"))
    )
    for length in range(1, 7):
        ids, scores = torch.full((2, length), 5), torch.randn(2, 40)
        assert torch.equal(processors(ids, scores.clone()), theirs(ids, scores.clone()))

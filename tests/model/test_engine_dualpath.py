"""The pool: whatever else is in it and however pushes interleave, a stream is what it is alone."""

import copy
import gc
import pickle
from functools import partial
from itertools import accumulate

import numpy as np
import peft
import pytest
import torch
from conftest import random_batch, single_model
from hypothesis import given, settings
from hypothesis import strategies as st
from test_generation_dualpath import LENGTHS, SIMULTANEOUS, lively_model, written

from hf_dualpath.model.dials_dualpath import Dials
from hf_dualpath.model.engine_dualpath import Limits
from hf_dualpath.model.torch_backend_dualpath import FusedWeights


DIALS = [
    {},
    {"write_threshold": 0.2},
    {"write_threshold": 0.9},
    {"wait_k": 1},
    {"wait_k": 5, "max_lag": 3},
    {"min_lag": 3},
    {"max_lag": 2},
    {"min_lag": 2, "max_lag": 4},
    {"max_new_tokens": 5},
    {"min_new_tokens": 4, "max_new_tokens": 4},
]


def dials_for(model, index: int) -> dict:
    known = *model.config.policy_class.dials, "min_new_tokens", "max_new_tokens"
    return {name: value for name, value in DIALS[index].items() if name in known}


def alone(model, tokens, **dials):
    opened = model.open_stream(**dials)
    return [*opened.push(tokens), *opened.finish()]


@st.composite
def talks(draw):
    """Streams with their dials, and the order in which their sources arrive."""
    count = draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(1, 12), min_size=count, max_size=count))
    dials = draw(st.lists(st.integers(0, len(DIALS) - 1), min_size=count, max_size=count))
    turns = [index for index, length in enumerate(lengths) for _ in range(length)]
    given_up = draw(st.sets(st.integers(0, count - 1), max_size=count - 1))  # in the middle of their source
    return lengths, dials, draw(st.permutations(turns)), draw(st.integers(0, 3)), given_up, draw(st.booleans())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("policy", SIMULTANEOUS)
@given(talk=talks())
@settings(max_examples=8, deadline=None)
def test_a_stream_in_a_pool_is_a_stream_alone(policy, dtype, talk):
    lengths, chosen, order, every, given_up, is_hard = talk
    torch.manual_seed(sum(lengths))
    attention = "hard_aligned" if is_hard and policy in ("mma", "shared_path") else "infinite_lookback"
    model = lively_model(policy=policy, monotonic_attention=attention).to(dtype)
    ids, _ = random_batch(lengths)
    sources = [row[:length].tolist() for row, length in zip(ids, lengths)]
    dials = [dials_for(model, index) for index in chosen]
    engine = model.open_engine()
    streams, found, given_ = {}, {index: [] for index in range(len(lengths))}, [0] * len(lengths)
    for turn, index in enumerate(order):
        if index not in streams:  # joins when its first token comes
            streams[index] = model.open_stream(engine=engine, **dials[index])
        streams[index].feed(sources[index][given_[index] : given_[index] + 1])
        given_[index] += 1
        if given_[index] == lengths[index]:
            streams[index].end()
        if index in given_up and 2 * given_[index] > lengths[index]:
            streams[index].close()
        if every and turn % every == 0:
            engine.tick()
            for which, stream in streams.items():
                found[which] += stream.take()
    while engine.tick():
        pass
    assert not engine.streams
    for index in set(streams) - given_up:
        found[index] += streams[index].take()
        assert streams[index].done
        assert found[index] == alone(model, sources[index], **dials[index])
        output = model.generate(ids[index : index + 1, : lengths[index]], return_dict_in_generate=True, **dials[index])
        assert [token for token, _ in written(found[index])] == output.sequences[0, 1:].tolist()
        assert [read for _, read in written(found[index])] == output.path[0].tolist()


def in_pushes(model, engine, sources, widths):
    """The actions of streams that read their sources together, so many tokens a push."""
    streams = [model.open_stream(engine=engine, max_new_tokens=6) for _ in sources]
    cuts = list(accumulate(widths, initial=0))
    assert cuts[-1] >= max(map(len, sources))
    for first, last in zip(cuts, cuts[1:]):
        for stream, source in zip(streams, sources):
            stream.feed(source[first:last])
            if last >= len(source):
                stream.end()
        engine.tick()
    while engine.tick():
        pass
    return [stream.take() for stream in streams]


@pytest.mark.slow
def test_compiled_steps_give_the_same_streams():
    """Static shapes: slots, lengths and pushes are padded, so that after one text nothing is compiled again."""
    torch._dynamo.reset()
    model = lively_model(policy="shared_path")
    sources = [random_batch([length])[0][0].tolist() for length in (5, 9)]
    engine = model.open_engine(slots=2, compile=True)
    found = [in_pushes(model, engine, sources, [1] * 9)]
    with torch.compiler.set_stance("fail_on_recompile"):
        found += [in_pushes(model, engine, sources, widths) for widths in ([1, 3, 2, 3], [4, 4, 1], [1] * 9)]
    for actions in found:
        assert actions == [alone(model, source, max_new_tokens=6) for source in sources]


@pytest.mark.parametrize("policy", SIMULTANEOUS)
def test_the_host_waits_only_where_tokens_are_fetched(policy):
    """Tensors without numbers refuse whoever looks at one."""
    model = lively_model(policy=policy).to("meta")
    engine = model.open_engine(slots=3)
    engine.backend.fetch = lambda *results: [np.zeros(result.shape, np.int64) for result in results]
    dials = Dials(), Dials(max_lag=2), Dials(min_lag=2)
    streams = [engine.open(its_dials, Limits(frozenset(), 20, 4), start_token=1) for its_dials in dials]
    for count in (1, 3, 2):  # of the last slots, then of all
        for stream in streams[-count:]:
            stream.feed([5] * count)
        engine.tick()
    for stream in streams:
        stream.end()
    while engine.tick():
        pass
    assert all(len(stream.path) == 4 for stream in streams)


def test_bfloat16_streams():
    model = lively_model().to(torch.bfloat16)
    tokens = random_batch([9])[0][0].tolist()
    actions = alone(model, tokens)
    assert actions.count(None) == 9 and written(actions)


# Weights exist once and follow the model


def adapted(model):
    settings = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj", "fc1"], init_lora_weights=False)
    return peft.get_peft_model(model, settings)


def scale(model, factor: float = 1.3):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(factor)


def update(model, **options):
    """With `fused`, the default of transformers, torch changes weights and leaves their versions as they were."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, **options)
    tokens = random_batch([9])[0]
    model.train()(tokens, labels=tokens).loss.backward()
    optimizer.step()
    model.eval()


def load(model, **options):
    other = copy.deepcopy(model)
    scale(other)
    model.load_state_dict(other.state_dict(), **options)


def scale_data(model):
    for parameter in model.parameters():
        parameter.data.mul_(1.3)


CHANGES = {
    "in place": scale,
    "through p.data": scale_data,
    "an update": update,
    "a fused update": partial(update, fused=True),
    "load_state_dict": load,
    "load_state_dict(assign=True)": partial(load, assign=True),
    "to": lambda model: model.to(torch.float64),
    "an adapter": adapted,
    "a merged adapter": lambda model: adapted(model).merge_adapter(),
    "a merged adapter that is taken away": lambda model: adapted(model).merge_and_unload(),
}


@pytest.mark.parametrize("policy", ["shared_path", "mma"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_decoding_follows_the_model(change, policy):
    """Its logits are those of `forward` along the same path, before a change of the weights and after it."""
    model = lively_model(policy=policy)
    ids, mask = random_batch(LENGTHS)
    asked = {"output_logits": True, "return_dict_in_generate": True, "max_new_tokens": 8, "min_new_tokens": 8}
    seen = []
    for step in (lambda model: None, change):
        step(model)
        output = model.generate(ids, mask, **asked)
        with torch.no_grad():
            forced = model(ids, mask, decoder_input_ids=output.sequences[:, :-1], path="hard").logits
        seen.append(torch.stack(output.logits, 1))
        assert (seen[-1] - forced).abs().max() < 1e-4
    assert not torch.equal(*seen)


def test_an_adapter_is_switched_off_and_on():
    model, ids = lively_model(), random_batch(LENGTHS)[0]
    before = model.generate(ids)
    adapter = adapted(model)
    after = adapter.generate(input_ids=ids)
    with adapter.disable_adapter():
        assert torch.equal(adapter.generate(input_ids=ids), before)
    assert torch.equal(adapter.generate(input_ids=ids), after) and not torch.equal(before, after)


def test_a_model_that_has_decoded_is_copied_and_pickled():
    model, ids = lively_model(), random_batch(LENGTHS)[0]
    size = len(pickle.dumps(model))
    written = model.generate(ids)
    assert torch.equal(copy.deepcopy(model).generate(ids), written)
    assert len(pickle.dumps(model)) == size


def test_weights_are_fused_once():
    model = lively_model()
    streams = [model.open_stream() for _ in range(3)]
    for stream in streams:
        list(stream.push([5]))
    assert {stream.engine.backend.weights for stream in streams} == {FusedWeights.of(model)}
    kept = len(FusedWeights.kept)
    model = streams = stream = None
    gc.collect()
    assert len(FusedWeights.kept) < kept, "they go with the model"


def bytes_of(engine) -> int:
    backend = engine.backend
    return sum(getattr(backend, name).numel() * getattr(backend, name).element_size() for name in backend.shapes)


def test_a_stream_costs_its_caches_and_gives_them_back():
    model = single_model().eval()
    engine = model.open_engine()
    assert bytes_of(engine) == 0
    streams = [model.open_stream(engine=engine) for _ in range(16)]
    for stream in streams:
        stream.feed([5, 6])
    engine.tick()
    one = model.open_stream()
    one.feed([5, 6])
    one.engine.tick()
    assert bytes_of(engine) == 16 * bytes_of(one.engine)
    for stream in streams[1:]:
        stream.close()
    streams[0].feed([7])
    engine.tick()
    assert bytes_of(engine) <= 4 * bytes_of(one.engine)
    assert streams[0].take() + list(streams[0].finish())
    assert bytes_of(engine) == 0 and streams[0].done


def test_a_source_that_is_too_long_is_refused_and_the_pool_goes_on():
    model = lively_model()
    engine = model.open_engine()
    long, short = (model.open_stream(engine=engine) for _ in range(2))
    long.feed([5] * 60)
    with pytest.raises(ValueError, match="max_position_embeddings"):
        long.feed([5] * 5)
    short.feed([5, 6, 1])
    short.end()
    while engine.tick():
        pass
    assert short.done and short.take() == alone(model, [5, 6, 1])

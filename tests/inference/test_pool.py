"""A pool gives each of its texts what a stream of its own would."""

import pytest
import torch
from conftest import dual_model
from hypothesis import given, settings
from hypothesis import strategies as st
from test_streaming import HARD, TEXT, make_translator, run, tokenizer, untimed  # noqa: F401

from hf_dualpath.inference.events import SentenceEnd, as_dict, from_dict
from hf_dualpath.inference.pool import StreamPool
from hf_dualpath.inference.streaming import SimultaneousTranslator
from hf_dualpath.inference.tokenization import train_word_tokenizer


TEXTS = ["Ein Hund. Eine Katze schläft", "Der Hund läuft. Die", "", "Katze Katze Katze."]


@pytest.fixture(scope="module")
def translator():
    words = train_word_tokenizer(TEXTS, 1, show_progress=False)
    torch.manual_seed(0)
    model = dual_model(vocab_size=len(words), encoder_layers=1, decoder_layers=2).eval()
    for parameter in model.parameters():
        parameter.data.mul_(1.5 if parameter.dim() > 1 else 1)
    return SimultaneousTranslator(model.forward_model, words, words)


def timeless(events) -> list[dict]:
    """Events without the time that they took."""
    return [{name: value for name, value in as_dict(event).items() if name != "seconds"} for event in events]


@settings(max_examples=8, deadline=None)
@given(data=st.data())
def test_a_pool_gives_what_streams_give(translator, data):
    """However the texts are cut, and however pushes and steps take turns."""
    pool = StreamPool(translator)
    sessions = [pool.open() for _ in TEXTS]
    found = [[] for _ in TEXTS]
    pieces = []
    for number, text in enumerate(TEXTS):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
        pieces += [(number, text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)])]
    for number, piece in pieces:
        sessions[number].push(piece)
        for _ in range(data.draw(st.integers(0, 3))):
            pool.step()
    for session in sessions:
        session.finish()
    while pool.step():
        for session, events in zip(sessions, found):
            events += session.take()
    for session, events, text in zip(sessions, found, TEXTS):
        alone = translator.fork()
        assert timeless(events + session.take()) == timeless(alone.push(text) + alone.finish())
        assert session.done and session.text == alone.text and session.words_read == len(text.split())


def test_a_session_that_forgets_does_not_grow(translator):
    """It says the same as one that remembers, and keeps the words of a sentence alone."""
    pool = StreamPool(translator)
    both = [pool.open(remembers=remembers) for remembers in (True, False)]
    found, most = [[], []], 0
    for _ in range(20):
        for session in both:
            session.push("Ein Hund. Der Hund läuft. ")
        while pool.step():
            most = max(most, len(both[1].words), len(both[1].path))
            for session, events in zip(both, found):
                events += session.take()
    assert timeless(found[0]) == timeless(found[1])
    longest = max(len(event.target.split()) for event in found[0] if isinstance(event, SentenceEnd))
    assert most <= longest < len(both[0].words) and both[1].words_written == len(both[0].words)


@pytest.mark.parametrize("policy", ["shared_path", "mma", "wait_k"])
def test_a_session_is_a_translator_alone(tokenizer, policy):  # noqa: F811
    translator = make_translator(tokenizer, policy)
    texts = [TEXT, HARD, "Der Hund läuft. " * 3, "Wo?"]
    dials = [{}, {"max_lag": 3}, {"min_lag": 2}, {}]
    alone = [run(translator.fork(**its_dials), [text]) for text, its_dials in zip(texts, dials)]

    @given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 30)), max_size=25), st.integers(1, 4))
    @settings(max_examples=6, deadline=None)
    def interleaved(turns, every):
        pool = StreamPool(translator)
        sessions = [pool.open(**its_dials) for its_dials in dials]
        given_, found = [0] * 4, [[] for _ in texts]
        rest = [(index, len(text)) for index, text in enumerate(texts)]
        for turn, (index, count) in enumerate([*turns, *rest]):
            sessions[index].push(texts[index][given_[index] : given_[index] + count])
            given_[index] += count
            if turn % every == 0:
                pool.step()
                for events, session in zip(found, sessions):
                    events += session.take()
        for session in sessions:
            session.finish()
        while pool.step():
            pass
        for events, session, expected in zip(found, sessions, alone):
            assert session.done and untimed(events + session.take()) == expected
            session.close()
        assert not pool.sessions and not pool.engine.streams

    interleaved()


def test_dials_hold_from_the_next_sentence_on(translator):
    """Set in the middle of one, or between two: as if each sentence had been a text of its own."""
    sentences = ["Ein Hund läuft.", "Eine Katze schläft.", "Der Hund Katze."]
    with pytest.raises(ValueError):
        StreamPool(translator).open(max_lag=0)
    session = (pool := StreamPool(translator)).open(max_lag=1)
    session.push("Ein Hund ")
    session.set_dials(max_lag=3)
    with pytest.raises(ValueError):
        session.set_dials(max_lag=0)
    session.push("läuft. Eine Katze schläft. ")
    session.set_dials(max_lag=2)
    session.push("Der Hund Katze.")
    session.finish()
    while pool.step():
        pass
    ends = [event.target for event in session.take() if isinstance(event, SentenceEnd)]
    assert ends == [translator.fork(max_lag=lag).translate(text) for text, lag in zip(sentences, (1, 3, 2))]


def test_a_full_pool_and_an_ended_text(translator):
    pool = StreamPool(translator, max_sessions=1)
    session = pool.open()
    with pytest.raises(ValueError, match="taken"):
        pool.open()
    session.finish()
    with pytest.raises(ValueError, match="ended"):
        session.push("mehr")
    session.close()
    assert pool.open() is not None


def test_events_survive_json(translator):
    events = translator.fork().push("Ein Hund. ")
    assert [from_dict(as_dict(event)) for event in events] == events

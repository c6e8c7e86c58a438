"""Texts in a pool: each session's events are those of a translator of its own."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_streaming import HARD, TEXT, make_translator, run, tokenizer, untimed  # noqa: F401

from hf_dualpath.inference.pool import StreamPool


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


def test_dials_change_from_the_next_sentence_on(tokenizer):  # noqa: F811
    translator = make_translator(tokenizer)
    pool = StreamPool(translator, max_sessions=1)
    session = pool.open()
    with pytest.raises(ValueError, match="taken"):
        pool.open()
    session.push("Der kleine Hund läuft. Die")
    while pool.step():
        pass
    session.set_dials(min_lag=5)
    with pytest.raises(ValueError, match="write_threshold"):
        session.set_dials(write_threshold=7)
    session.push(" Katze schläft. Niemand weiß es.")
    session.finish()
    while pool.step():
        pass
    later = make_translator(tokenizer, min_lag=5)
    assert untimed(session.take())[-len(run(later, ["Niemand weiß es."])) :][0].word == "Niemand"
    with pytest.raises(ValueError, match="has ended"):
        session.push("x")

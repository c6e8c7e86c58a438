"""Captions with times: what is shown had been heard. Partial hypotheses are not read."""

import time
from argparse import Namespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_dualpath.apps.captions import (
    LONGEST_CAPTION,
    Caption,
    final_text,
    heard_words,
    lines_of,
    read_captions,
    timed_captions,
    written,
)
from hf_dualpath.apps.translate import translate_captions
from hf_dualpath.errors import DataError
from hf_dualpath.inference.events import SentenceEnd, Write


SRT = """\ufeff1
00:00:01,000 --> 00:00:03,000
<i>Guten</i> Morgen,
liebe Leute.

2
00:01:00,500 --> 00:01:02,000 position:50%
Es ist {\\an8}spät.
"""
VTT = """WEBVTT - a talk

NOTE nobody reads this

intro
00:01.000 --> 00:03.000 align:start
<v Anna>Guten Morgen,
liebe Leute.

01:00.500 --> 01:02.000
Es ist spät &amp; kalt.
"""


def test_srt_and_vtt():
    assert read_captions(SRT.replace("\n", "\r\n")) == [
        Caption(1, 3, "Guten Morgen, liebe Leute."),
        Caption(60.5, 62, "Es ist spät."),
    ]
    assert read_captions(VTT) == [
        Caption(1, 3, "Guten Morgen, liebe Leute."),
        Caption(60.5, 62, "Es ist spät & kalt."),
    ]


@pytest.mark.parametrize("text", ["", "only text", "00:00:05,000 --> 00:00:01,000\nbackwards"])
def test_no_captions(text):
    with pytest.raises(DataError):
        read_captions(text)


@pytest.mark.parametrize("junk", ["<", "{\\", "<a", "{\\{"])
def test_tags_without_an_end_take_no_time(junk):
    """Each begins where another might: a line of them took quadratic time."""
    began = time.perf_counter()
    read_captions("1\n00:00:01,000 --> 00:00:02,000\n" + 300_000 * junk)
    assert time.perf_counter() - began < 10


def test_a_word_is_heard_in_its_share_of_the_time():
    assert heard_words([Caption(1, 3, "Guten Abend")]) == [("Guten", 2.0), ("Abend", 3.0)]
    overlapping = heard_words([Caption(1, 5, "a b"), Caption(2, 4, "c d")])
    assert [time for _, time in overlapping] == [3, 5, 5, 5], "never before a word that came before it"


@st.composite
def translations(draw):
    """A talk with times, and a translation that reads on as it writes."""
    heard = sorted(draw(st.lists(st.floats(0, 500), min_size=1, max_size=40)))
    events, read, first = [], 1, 0
    for _ in range(draw(st.integers(1, 60))):
        read = min(len(heard), read + draw(st.integers(0, 3)))
        events.append(Write(draw(st.sampled_from(["a", "word", "longer,", "considerably"])), read, read, 0.0))
        if draw(st.integers(0, 5)) == 0:
            events.append(SentenceEnd("", "", (first, read), (0, 0)))
            first = read
    return events, heard


@given(translations())
def test_nothing_is_shown_before_it_was_heard(translation):
    """Every word of the translation is in one caption, in order; no caption comes before all that its words were
    translated from; captions do not overlap, last long enough to be read, and survive being written and read."""
    events, heard = translation
    captions = list(timed_captions(events, heard))
    writes = [event for event in events if isinstance(event, Write)]
    assert " ".join(caption.text for caption in captions).split() == [write.word for write in writes]
    place = 0
    for caption in captions:
        own = writes[place : place + len(caption.text.split())]
        place += len(own)
        assert caption.start >= max(heard[write.source_words_read - 1] for write in own)
        assert caption.end - caption.start > 0.99 and len(caption.text) <= LONGEST_CAPTION
    assert all(before.end <= after.start for before, after in zip(captions, captions[1:]))
    for form in ("srt", "vtt"):
        again = read_captions("".join(written(captions, form)))
        assert [caption.text for caption in again] == [caption.text for caption in captions]
        assert all(-1e-8 < new.start - old.start < 0.0011 for new, old in zip(again, captions)), "never earlier"


class Hesitant:
    """Writes the only word of its first sentence when the next one has begun."""

    def stream(self, words):
        for number, _ in enumerate(words, 1):
            if number == 2:
                yield Write("third.", 1, 1, 0.0)
                yield SentenceEnd("3.", "third.", (0, 1), (0, 1))


def test_what_was_known_at_the_next_word_is_shown_then(capsys, tmp_path):
    source = tmp_path / "talk.srt"
    source.write_text(SRT.replace("<i>Guten</i> Morgen,\nliebe Leute.", "3."), encoding="utf-8")
    translate_captions(Namespace(file=str(source), output=None, format="srt", server=None), Hesitant())
    assert read_captions(capsys.readouterr().out)[0].start >= 60.5


def test_markup_in_a_translation_is_text_in_webvtt():
    block = "".join(written([Caption(0, 1, "a <b> & c")], "vtt"))
    assert "a &lt;b&gt; &amp; c" in block and read_captions(block) == [Caption(0, 1, "a <b> & c")]


def test_json_lines():
    lines = [
        '{"text": "Ich ha", "is_final": false}',
        "",
        '{"text": "Ich habe", "is_final": true}',
        b'{"text": "Zeit."}',
    ]
    assert "".join(final_text(lines)) == "Ich habe Zeit. "
    for wrong in ("text", '{"words": "a"}', '{"text": 3}', '{"text": "a", "is_final": "no"}', "[1]", "[" * 10**5):
        with pytest.raises(DataError, match="line 2|Line 2"):
            list(final_text(['{"text": "a"}', wrong]))


@given(st.binary(max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_lines_come_whole(data, cuts):
    cuts = sorted(cuts)
    assert list(lines_of(data[a:b] for a, b in zip([0, *cuts], [*cuts, 60]))) == data.split(b"\n")

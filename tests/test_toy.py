from collections import defaultdict
from random import Random

import pytest

from hf_dualpath import toy
from hf_dualpath.toy import generate_pairs, noun_phrase, pharaoh, toy_splits


NOUNS = {noun.forms[0].split(":")[0]: noun for nouns in toy.NOUNS.values() for noun in nouns}
VERBS = {verb.infinitive.split(":")[0]: verb for verb in toy.VERBS}


@pytest.fixture(scope="module")
def pairs():
    return generate_pairs(5000, seed=1)


def clause(monkeypatch, infinitive: str, tense: str, final: bool = False) -> toy.ToyPair:
    """`Peter` with this verb, in a grammar that draws no adverbials."""
    monkeypatch.setattr(toy, "VERBS", [VERBS[infinitive]])
    monkeypatch.setattr(toy, "NOUNS", {kind: [NOUNS["Frau"]] for kind in toy.NOUNS})
    monkeypatch.setattr(toy, "DETERMINERS", (["d:the"], ["d:the"]))
    monkeypatch.setattr(toy.Grammar, "chance", lambda self, probability: False)
    subject = toy.Subject(toy.gloss("Peter:Peter"), 1, "p")
    return toy.as_pair(toy.Grammar(Random(0)).clause(subject, final=final, tenses=[tense]))


def test_a_seed_gives_the_same_pairs():
    assert generate_pairs(100, seed=3) == generate_pairs(100, seed=3) == generate_pairs(150, seed=3)[:100]
    assert not {pair.source for pair in generate_pairs(100, 3)} & {pair.source for pair in generate_pairs(100, 4)}


def test_every_word_is_aligned(pairs):
    for pair in pairs:
        source, target = pair.source.split(), pair.target.split()
        assert {i for i, _ in pair.alignment} == set(range(len(source))), pair
        assert {j for _, j in pair.alignment} == set(range(len(target))), pair
        assert len(set(pair.alignment)) == len(pair.alignment)


def test_the_text_is_clean(pairs):
    for pair in pairs:
        for text in (pair.source, pair.target):
            assert text[0].isupper() and text.endswith(".") and text.count(".") == 1
            assert not any(bad in text for bad in ("  ", " ,", ",,", ",.", "_", "|", ":", "/")), text
            assert 4 <= len(text.split()) <= 18


@pytest.mark.parametrize(
    ("infinitive", "tense", "final", "source", "target", "alignment"),
    [
        ("anrufen", "present", False, "Peter ruft die Frau an.", "Peter calls the woman.", "0-0 1-1 2-2 3-3 4-1"),
        ("anrufen", "past", True, "Peter die Frau anrief.", "Peter called the woman.", "0-0 1-2 2-3 3-1"),
        ("sehen", "past", False, "Peter sah die Frau.", "Peter saw the woman.", "0-0 1-1 2-2 3-3"),
        ("sehen", "perfect", False, "Peter hat die Frau gesehen.", "Peter has seen the woman.", "0-0 1-1 2-3 3-4 4-2"),
        ("einladen", "perfect", True, "Peter die Frau eingeladen hat.", "Peter has invited the woman.",
         "0-0 1-3 2-4 3-2 4-1"),
        ("suchen", "present", False, "Peter sucht die Frau.", "Peter looks for the woman.", "0-0 1-1 1-2 2-3 3-4"),
        ("aufstehen", "present", False, "Peter steht auf.", "Peter rises.", "0-0 1-1 2-1"),
        ("ankommen", "perfect", False, "Peter ist angekommen.", "Peter has arrived.", "0-0 1-1 2-2"),
    ],
)  # fmt: skip
def test_verbs(monkeypatch, infinitive, tense, final, source, target, alignment):
    pair = clause(monkeypatch, infinitive, tense, final)
    assert (pair.source, pair.target, pharaoh(pair)) == (source, target, alignment)


def test_modals_send_the_infinitive_to_the_end(monkeypatch):
    monkeypatch.setattr(toy, "MODALS", "will:want_to will:wants_to wollen:want_to")
    pair = clause(monkeypatch, "kennenlernen", "modal")
    assert (pair.source, pair.target) == ("Peter will die Frau kennenlernen.", "Peter wants to meet the woman.")
    assert pharaoh(pair) == "0-0 1-1 1-2 2-4 3-5 4-3"


def test_subordinate_clauses_are_verb_final(pairs):
    """After the last `weil` without further clauses, the English finite verb comes from the last German word."""
    checked = 0
    for pair in pairs:
        source, target = pair.source.split(), pair.target.split()
        if "weil" in source[1:] and "," not in pair.source.split("weil")[1] and pair.source.count("weil") == 1:
            last = len(source) - 1
            first_target = min(j for i, j in pair.alignment if i == last)
            assert first_target > target.index("because")
            objects = [j for i, j in pair.alignment if source.index("weil") < i < last and j > first_target]
            checked += bool(objects)
    assert checked > 100, "English words that follow the verb whose German ones precede it"


@pytest.mark.parametrize(
    ("noun", "determiner", "adjective", "plural", "nominative", "accusative"),
    [
        ("Mann", "d:the", "alt:old", False, "der alte Mann", "den alten Mann"),
        ("Mann", "ein:a", "alt:old", False, "ein alter Mann", "einen alten Mann"),
        ("Frau", "d:the", "alt:old", False, "die alte Frau", "die alte Frau"),
        ("Frau", "ein:a", "alt:old", False, "eine alte Frau", "eine alte Frau"),
        ("Kind", "d:the", "alt:old", False, "das alte Kind", "das alte Kind"),
        ("Kind", "ein:a", "alt:old", False, "ein altes Kind", "ein altes Kind"),
        ("Apfel", "unser:our", "rot:red", False, "unser roter Apfel", "unseren roten Apfel"),
        ("Apfel", "dies:this", "", False, "dieser Apfel", "diesen Apfel"),
        ("Haus", "jed:every", "neu:new", False, "jedes neue Haus", "jedes neue Haus"),
        ("Mann", "d:the", "alt:old", True, "die alten Männer", "die alten Männer"),
        ("Frau", "kein:no", "alt:old", True, "keine alten Frauen", "keine alten Frauen"),
        ("Kind", "zwei:two", "klein:small", True, "zwei kleine Kinder", "zwei kleine Kinder"),
        ("Katze", ":", "klein:small", True, "kleine Katzen", "kleine Katzen"),
    ],
)
def test_german_noun_phrases(noun, determiner, adjective, plural, nominative, accusative):
    for case, gold in enumerate((nominative, accusative)):
        phrase = noun_phrase(NOUNS[noun], determiner, adjective, plural, case)
        assert " ".join(word for word, _ in phrase.german) == gold


@pytest.mark.parametrize(
    ("adjective", "gold"), [("", "an apple"), ("rot:red", "a red apple"), ("alt:old", "an old apple")]
)
def test_english_article(adjective, gold):
    assert " ".join(word for word, _ in noun_phrase(NOUNS["Apfel"], "ein:a", adjective).english) == gold


def test_a_sentence_has_one_translation_in_either_direction(monkeypatch):
    """With so few words that sentences come up again: the grammar leaves no choice. The next test is about words."""
    few = {"p": ["Mädchen"], "a": ["Esel"], "f": ["Kuchen"], "t": ["Messer"], "o": ["Fenster"]}
    monkeypatch.setattr(toy, "NOUNS", {kind: [NOUNS[name] for name in names] for kind, names in few.items()})
    monkeypatch.setattr(toy, "ADJECTIVES", {"pafto": "alt:old"})
    monkeypatch.setattr(toy, "DETERMINERS", (["d:the"], ["d:the", ":"]))
    monkeypatch.setattr(toy, "MODALS", toy.MODALS.split(",")[0])
    monkeypatch.setattr(toy, "NAMES", toy.NAMES[:2])
    monkeypatch.setattr(toy, "EXTRAS", {key: table.split(",")[0] for key, table in toy.EXTRAS.items()})
    monkeypatch.setattr(toy, "TIMES", {tense: table.split(",")[0] for tense, table in toy.TIMES.items()})
    kept = ("sehen", "anrufen", "ankommen", "zugeben", "sein")
    monkeypatch.setattr(toy, "VERBS", [VERBS[name] for name in kept])
    grammar, translations = toy.Grammar(Random(0)), defaultdict(set)
    for _ in range(20_000):
        pair = toy.as_pair(grammar.sentence())
        translations["de", pair.source].add(pair.target)
        translations["en", pair.target].add(pair.source)
    assert len(translations) < 36_000, "sentences repeat"
    assert {text: found for text, found in translations.items() if len(found) > 1} == {}


def test_a_word_has_one_translation():
    """No English form belongs to two nouns, adjectives or verbs, or to two tenses."""
    owners = defaultdict(set)
    for name, noun in NOUNS.items():
        for form in noun.forms:
            owners[form.split(":")[1]].add(name)
    for table in toy.ADJECTIVES.values():
        for german, english in (entry.split(":") for entry in table.split()):
            owners[english].add(german)
    for name, verb in VERBS.items():
        present, past = ({form.split(":")[1] for form in verb.finite[tense]} for tense in ("present", "past"))
        assert not present & past, name
        for form in present | past | {verb.participle.split(":")[1], verb.infinitive.split(":")[1]}:
            owners[form].add(name)
    assert {form: names for form, names in owners.items() if len(names) > 1} == {}


def test_there_are_hundreds_of_words_and_many_late_verbs(pairs):
    for side in ([pair.source for pair in pairs], [pair.target for pair in pairs]):
        assert len({word.strip(".,").lower() for text in side for word in text.split()}) >= 300
    waits = [max(i - j for i, j in pair.alignment) for pair in pairs]
    assert sum(wait >= 2 for wait in waits) > 0.4 * len(pairs), "a target word whose source word comes late"
    assert sum(wait == 0 for wait in waits) > 0.1 * len(pairs), "sentences that need no waiting"


def test_splits_have_no_common_sentence():
    splits = toy_splits(train=300, validation=20, test=30, seed=5)
    assert {name: len(split) for name, split in splits.items()} == {"train": 300, "validation": 20, "test": 30}
    for column in ("source", "target"):
        assert len({text for split in splits.values() for text in split[column]}) == 350
    assert splits["test"].column_names == ["source", "target", "alignment"]
    assert toy_splits(train=10, validation=20, test=30, seed=5)["test"][:] == splits["test"][:]
    assert toy_splits(train=1, validation=0, test=0)["test"].column_names == ["source", "target", "alignment"]

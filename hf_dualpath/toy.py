"""German and English sentence pairs with gold word alignments, from a small grammar: data for tests and first runs.

German puts separable prefixes, participles, infinitives and the verbs of subordinate clauses at the end, where English
wants them early: a simultaneous translator has to wait, and the alignments say for how long. A German sentence has one
translation and the other way round, so that a small model can learn both directions almost perfectly.
"""

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from datasets import DatasetDict

Token = tuple[str, object]  # a word and its link; words of the two sides that share a link are aligned
Pair = tuple[str, str]  # German, English; `_` stands for a space


@dataclass(frozen=True)
class ToyPair:
    """A sentence, its translation, and 0-based (source word, target word) links between their whitespace words."""

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Phrase:
    german: tuple[Token, ...] = ()
    english: tuple[Token, ...] = ()

    def __add__(self, other: "Phrase") -> "Phrase":
        return Phrase(self.german + other.german, self.english + other.english)


@dataclass(frozen=True)
class Verb:
    subjects: str  # kinds of nouns, keys of NOUNS; one written twice is drawn twice as often
    objects: str
    extras: str  # keys of EXTRAS
    prefix: str
    perfect: tuple[Pair, ...]  # auxiliaries, by agreement: with I, he, we
    infinitive: Pair
    participle: Pair
    present: tuple[Pair, ...]  # by agreement
    past: tuple[Pair, ...]


def linked(german: str, english: str) -> Phrase:
    """Words that translate each other as a whole."""
    link = object()
    return Phrase(*(tuple((word, link) for word in side.split("_")) for side in (german, english)))


def glossed(text: str) -> Phrase:
    """A phrase in the same order on both sides, such as `am:in_the Abend:evening`."""
    return sum((linked(*pair.split(":")) for pair in text.split()), Phrase())


def entries(table: str) -> list[list[str]]:
    return [entry.split() for entry in table.split(",")]


def by_agreement(forms: str) -> tuple[Pair, ...]:
    return tuple(zip(forms.split()[:3], forms.split()[3:]))


def inflected(word: str, ending: str) -> str:
    """English plural or third person (`s`) or regular past (`ed`), of the first word in `look_for`."""
    word, *rest = word.split("_", 1)
    if word.endswith("y") and word[-2] not in "aeiou":
        word = word[:-1] + "ie"
    elif ending == "s" and word.endswith(("s", "x", "ch", "sh", "o")):
        word += "e"
    return "_".join([word.removesuffix("e") + "ed" if ending == "ed" else word + ending, *rest])


def noun(gender: str, german: str, plural: str, english: str, *irregular: str) -> tuple[str, Pair, Pair]:
    plural = german + plural[1:] if plural.startswith("-") else plural
    return gender, (german, english), (plural, *(irregular or [inflected(english, "s")]))


def verb(kinds: tuple[str, str, str], german: str, english: str) -> Verb:
    """From `an|rufen/ruft/rief/gerufen` and `see/saw/seen`; of a regular verb the infinitive is enough."""
    prefix, _, german = german.rpartition("|")
    infinitive, *irregular = german.split("/")
    stem = infinitive.removesuffix("en")
    weak = stem + ("et" if stem.endswith(("t", "d", "chn")) else "t")
    ge = "" if stem.startswith(("be", "ver")) or stem.endswith("ier") else "ge"
    third, past, participle = irregular or (weak, weak + "e", ge + weak)
    base, *english_irregular = english.split("/")
    english_past, english_participle = (2 * (english_irregular or [inflected(base, "ed")]))[:2]
    return Verb(
        *(*kinds, prefix, HAVE[participle.startswith("ist_")]),
        infinitive=(prefix + infinitive, base),
        participle=(prefix + participle.removeprefix("ist_"), english_participle),
        present=by_agreement(f"{infinitive[:-1]} {third} {infinitive} {base} {inflected(base, 's')} {base}"),
        past=by_agreement(f"{past} {past} {past.removesuffix('e')}en" + 3 * f" {english_past}"),
    )


# Kinds: person, animal, food, thing, opening. Nouns that change in the accusative singular are left out.
NOUNS = {
    kind: [noun(*entry) for entry in entries(table)]
    for kind, table in {
        "p": """m Mann Männer man men, f Frau -en woman women, n Kind -er child children, n Mädchen - girl,
            m Lehrer - teacher, m Arzt Ärzte doctor, m Freund -e friend, m Bruder Brüder brother, m Onkel - uncle,
            f Schwester -n sister, f Mutter Mütter mother, m Vater Väter father, m Sohn Söhne son, f Hexe -n witch,
            f Tochter Töchter daughter, f Tante -n aunt, m König -e king, f Königin -nen queen, m Gast Gäste guest,
            m Dieb -e thief thieves, n Baby -s baby, m Ingenieur -e engineer, f Tänzerin -nen dancer""",
        "a": """m Hund -e dog, f Katze -n cat, n Pferd -e horse, m Vogel Vögel bird, f Kuh Kühe cow, m Esel - donkey,
            f Maus Mäuse mouse mice, n Schwein -e pig, m Wolf Wölfe wolf wolves, m Fuchs Füchse fox, m Adler - eagle""",
        "f": """m Apfel Äpfel apple, f Birne -n pear, m Kuchen - cake, n Ei -er egg, f Suppe -n soup, m Salat -e salad,
            f Kartoffel -n potato, n Brötchen - roll, m Keks -e cookie, f Wurst Würste sausage, f Zwiebel -n onion""",
        "t": """m Tisch -e table, m Stuhl Stühle chair, f Lampe -n lamp, n Fahrrad Fahrräder bicycle, f Uhr -en clock,
            n Bild -er picture, f Tasche -n bag, n Messer - knife knives, m Hut Hüte hat, m Mantel Mäntel coat,
            m Ring -e ring, n Kleid -er dress, f Flasche -n bottle, m Schirm -e umbrella, n Buch Bücher book""",
        "o": """f Tür -en door, n Fenster - window, n Tor -e gate, m Schrank Schränke cupboard, f Kiste -n box,
            n Zimmer - room, f Küche -n kitchen, n Haus Häuser house, n Büro -s office, m Keller - basement""",
    }.items()
}
ADJECTIVES = {
    "pafto": "groß big, klein small, alt old, schön beautiful, hässlich ugly, seltsam strange",
    "pa": """jung young, stark strong, schwach weak, krank sick, gesund healthy, klug clever, hungrig hungry, faul lazy,
        glücklich happy, traurig sad, freundlich friendly, ruhig calm, mutig brave, dick fat""",
    "p": "reich rich, arm poor, berühmt famous, stolz proud, höflich polite, streng strict",
    "f": "frisch fresh, süß sweet, warm warm, kalt cold, heiß hot, lecker delicious",
    "to": """rot red, blau blue, grün green, gelb yellow, weiß white, schwarz black, neu new, schmutzig dirty,
        modern modern, billig cheap, wertvoll valuable""",
}
HAVE = by_agreement("habe hat haben have has have"), by_agreement("bin ist sind have has have")
# No English verb is the same in present and past (read, put): the tense of its translation would be open.
FULL_VERBS = [
    verb(kinds, *entry)
    for kinds, table in {
        ("ppa", "ppaafto", "p"): """sehen/sieht/sah/gesehen see/saw/seen, finden/findet/fand/gefunden find/found,
            suchen look_for, berühren touch, beobachten observe, an|schauen look_at, an|starren stare_at,
            wieder|erkennen/erkennt/erkannte/erkannt recognize""",
        ("p", "ppafto", ""): """lieben love, hassen hate, brauchen need, zurück|lassen/lässt/ließ/gelassen abandon,
            vergessen/vergisst/vergaß/vergessen forget/forgot/forgotten""",
        ("p", "p", "p"): """an|rufen/ruft/rief/gerufen call, ein|laden/lädt/lud/geladen invite, vor|stellen introduce,
            kennen|lernen meet/met, auf|wecken awaken, aus|lachen mock, an|schreien/schreit/schrie/geschrien shout_at,
            ein|stellen hire, besuchen visit, fragen ask, küssen kiss, loben praise, retten rescue""",
        ("p", "ft", "fp"): """kaufen buy/bought, verkaufen sell/sold, verstecken hide/hid/hidden, ein|packen pack,
            mit|nehmen/nimmt/nahm/genommen take/took/taken, mit|bringen/bringt/brachte/gebracht bring/brought,
            aus|wählen choose/chose/chosen, weg|werfen/wirft/warf/geworfen throw_away/threw_away/thrown_away""",
        ("p", "to", "cf"): "zeichnen draw/drew/drawn, malen paint, reparieren repair, her|richten restore",
        ("p", "o", "cf"): """auf|machen open, zu|machen close, ab|schließen/schließt/schloss/geschlossen lock,
            putzen clean""",
        ("ppa", "f", "p"): "essen/isst/aß/gegessen eat/ate/eaten, auf|essen/isst/aß/gegessen devour",
        ("p", "f", "cfp"): "kochen cook, zu|bereiten prepare, auf|wärmen heat, bestellen order",
        (
            "ppa",
            "",
            "p",
        ): """schlafen/schläft/schlief/geschlafen sleep/slept, laufen/läuft/lief/ist_gelaufen run/ran/run,
            warten wait, an|kommen/kommt/kam/ist_gekommen arrive, auf|stehen/steht/stand/ist_gestanden rise/rose/risen,
            auf|wachen/wacht/wachte/ist_gewacht wake_up/woke_up/woken_up""",
        ("p", "", "mcp"): """arbeiten work, tanzen dance, singen/singt/sang/gesungen sing/sang/sung, lachen laugh,
            spielen play, ein|kaufen shop/shopped, auf|treten/tritt/trat/ist_getreten perform, zu|hören listen,
            nach|denken/denkt/dachte/gedacht reflect, spazieren|gehen/geht/ging/ist_gegangen stroll""",
        ("p", "that", ""): """sagen say/said, glauben believe, hoffen hope, behaupten claim, fest|stellen notice,
            an|nehmen/nimmt/nahm/genommen assume, zu|geben/gibt/gab/gegeben admit/admitted,
            denken/denkt/dachte/gedacht think/thought""",
    }.items()
    for entry in entries(table)
]
BE = Verb(
    *("pppafto", "", "", "", HAVE[1], ("sein", "be"), ("gewesen", "been")),
    *(by_agreement("bin ist sind am is are"), by_agreement("war war waren was was were")),
)
VERBS = FULL_VERBS + 8 * [BE]
MODALS = """kann kann können can can can, muss muss müssen must must must, soll soll sollen should should should,
    werde wird werden will will will, will will wollen want_to wants_to want_to""".split(",")
NAMES = "Anna Peter Maria Paul Julia Thomas Lisa Max".split()
PRONOUNS = entries("ich I 0, er he 1, sie she 1, wir we 2, sie they 2")
OBJECT_PRONOUNS = "ihn:him sie:her mich:me uns:us".split()
RELATIVE_PRONOUNS = {"m": "der", "f": "die", "n": "das", "plural": "die"}
DETERMINERS = (
    entries("d the, d the, d the, ein a, ein a, ein a, dies this, jed every, kein no, mein my, sein his, unser our"),
    entries("d the, d the, d the, dies these, kein no, mein my, unser our, zwei two, drei three, - -, - -"),
)
DER_WORDS, POSSESSIVES, EIN_WORDS = (
    ("d", "dies", "jed"),
    ("mein", "sein", "unser"),
    ("ein", "kein", "mein", "sein", "unser"),
)
ENDINGS = {"m": ("er", "en"), "f": ("e", "e"), "n": ("es", "es"), "plural": ("e", "e")}  # nominative, accusative
FREQUENCIES = "oft:often immer:always selten:rarely manchmal:sometimes".split()
EXTRAS = {  # manner, companion, for whom, place
    "m": "leise:quietly, laut:loudly, langsam:slowly, gern:gladly, geduldig:patiently".split(","),
    "c": "mit:with Clara:Clara, mit:with mir:me, ohne:without Karl:Karl, mit:with drei:three Kollegen:colleagues".split(
        ","
    ),
    "f": "für:for Clara:Clara, für:for mich:me, für:for Karl:Karl, für:for seine:his Großmutter:grandmother".split(
        ","
    ),
    "p": """im:in_the Park:park, im:in_the Garten:garden, im:in_the Wald:forest, am:at_the Strand:beach, hier:here,
        zu_Hause:at_home, am:at_the Bahnhof:station, auf:on der:the Straße:street, auf:on der:the Brücke:bridge,
        in:in der:the Stadt:city, in:in der:the Schule:school, neben:beside dem:the Fluss:river, draußen:outside,
        hinter:behind dem:the Theater:theater, in:in Berlin:Berlin, in:in Wien:Vienna""".split(","),
}
ANY_TIME = "am:on Montag:Monday, am:on Sonntag:Sunday, im:in Sommer:summer, am:in_the Abend:evening, nachts:at_night,"
TIMES = {
    "present": (ANY_TIME + "heute:today, jetzt:now, jeden:every Tag:day, jede:every Woche:week").split(","),
    "past": (ANY_TIME + "gestern:yesterday, letzte:last Woche:week, letztes:last Jahr:year").split(","),
    "perfect": "heute:today, kürzlich:recently, diese:this Woche:week, dieses:this Jahr:year".split(","),
    "modal": (ANY_TIME + "heute:today, morgen:tomorrow, bald:soon, nächste:next Woche:week").split(","),
}
TENSES = tuple(TIMES)
CONJUNCTIONS = [("weil:because", TENSES), ("obwohl:although", TENSES), ("wenn:if", ("present",))]
NOTHING, GERMAN_COMMA, COMMA = Phrase(), Phrase(((",", None),)), Phrase(((",", None),), ((",", None),))


def noun_phrase(
    noun: tuple[str, Pair, Pair], determiner: Pair, adjective: Pair | None, plural: bool, case: int
) -> Phrase:
    """The determiner shows gender and case (0 nominative, 1 accusative) with its ending, or else the adjective does."""
    (stem, article), ending = determiner, ENDINGS["plural" if plural else noun[0]][case]
    shown = stem in DER_WORDS or (stem in EIN_WORDS and ending in ("e", "en"))
    word = stem + ending if shown else stem
    weak = "en" if plural or ending == "en" else "e"
    phrase = linked(*noun[1 + plural])
    if adjective:
        phrase = linked(adjective[0] + (weak if shown else ending), adjective[1]) + phrase
    if article == "a" and phrase.english[0][0][0] in "aeiou":
        article = "an"
    return phrase if stem == "-" else linked({"de": "die", "des": "das"}.get(word, word), article) + phrase


@dataclass(frozen=True)
class Subject:
    phrase: Phrase
    agreement: int
    kind: str


class Grammar:
    """Draws phrases, clauses and sentences."""

    def __init__(self, random: Random):
        self.choice, self.chance = random.choice, lambda probability: random.random() < probability

    def adjective(self, kind: str) -> list[str]:
        return self.choice(entries(",".join(table for kinds, table in ADJECTIVES.items() if kind in kinds)))

    def noun_phrase(self, kind: str, case: int, relative: bool = False) -> tuple[Phrase, int]:
        """With its agreement."""
        if kind == "p" and self.chance(0.15):
            return linked(*2 * [self.choice(NAMES)]), 1
        noun, plural = self.choice(NOUNS[kind]), self.chance(0.25)
        determiner = self.choice(DETERMINERS[plural])
        phrase = noun_phrase(noun, determiner, self.adjective(kind) if self.chance(0.35) else None, plural, case)
        if relative and kind == "p" and determiner[0] not in POSSESSIVES and self.chance(0.15):
            who = Subject(linked(RELATIVE_PRONOUNS["plural" if plural else noun[0]], "who"), 1 + plural, kind)
            phrase += GERMAN_COMMA + self.clause(who, final=True) + GERMAN_COMMA
        return phrase, 1 + plural

    def subject(self, kinds: str) -> Subject:
        kind = self.choice(kinds)
        if kind == "p" and self.chance(0.25):
            *pronoun, agreement = self.choice(PRONOUNS)
            return Subject(linked(*pronoun), int(agreement), kind)
        if self.chance(0.06):
            return Subject(self.noun_phrase(kind, 0)[0] + glossed("und:and") + self.noun_phrase(kind, 0)[0], 2, kind)
        return Subject(*self.noun_phrase(kind, 0, relative=True), kind)

    def clause(
        self,
        subject: Subject | None = None,
        front: Phrase = NOTHING,
        final: bool = False,
        tenses: tuple[str, ...] = TENSES,
    ) -> Phrase:
        """A main clause with its finite verb in second place, or a subordinate one with its verbs at the end."""
        verb = self.choice([verb for verb in VERBS if subject is None or subject.kind in verb.subjects])
        subject = subject or self.subject(verb.subjects)
        tense = self.choice([tense for tense in tenses if verb is not BE or tense in ("present", "past")])
        if tense in ("perfect", "modal"):
            forms = verb.perfect if tense == "perfect" else by_agreement(self.choice(MODALS))
            helper = linked(*forms[subject.agreement])
            main = linked(*(verb.participle if tense == "perfect" else verb.infinitive))
            left, right = helper.german, main.german
        else:
            german, english = (verb.present if tense == "present" else verb.past)[subject.agreement]
            separated = "" if final or not verb.prefix else "_" + verb.prefix
            helper, main = NOTHING, linked((verb.prefix if final else "") + german + separated, english)
            left, right = main.german[:1], main.german[1:]

        pronoun = rest = that = time = adverb = NOTHING
        if verb is BE:
            rest = (glossed("sehr:very") if self.chance(0.3) else NOTHING) + linked(*self.adjective(subject.kind))
        elif verb.objects == "that":
            that = GERMAN_COMMA + glossed("dass:that") + self.clause(final=True) + GERMAN_COMMA
        elif verb.objects:
            kind = self.choice(verb.objects)
            if kind == "p" and self.chance(0.2):  # a first person could be the subject's, and then be reflexive
                pronoun = glossed(self.choice(OBJECT_PRONOUNS[: 4 if subject.agreement == 1 else 2]))
            else:
                rest = self.noun_phrase(kind, 1)[0]
        for extra in verb.extras:
            rest += glossed(self.choice(EXTRAS[extra])) if self.chance(0.2) else NOTHING
        if self.chance(0.35):
            time = glossed(self.choice(TIMES[tense]))
            if not final and front is NOTHING and subject.phrase is not NOTHING and self.chance(0.5):
                front, time = time, NOTHING
        elif verb is not BE and self.chance(0.15):
            adverb = glossed(self.choice(FREQUENCIES))

        middle = pronoun.german + time.german + adverb.german + rest.german
        if final:
            german = subject.phrase.german + middle + right + left
        elif front is NOTHING:
            german = subject.phrase.german + left + middle + right
        else:
            german = front.german + left + subject.phrase.german + middle + right
        wants = helper.english[0][0].startswith("want") if helper.english else False
        predicate = adverb + helper + main if wants else helper + adverb + main
        english = front + subject.phrase + predicate + pronoun + rest + time
        return Phrase(german, english.english) + that

    def sentence(self) -> Phrase:
        shape = self.choice("simple simple simple simple clauses verbs subordinate subordinate fronted".split())
        if shape == "simple":
            return self.clause()
        if shape == "clauses":
            return (
                self.clause()
                + (glossed("und:and") if self.chance(0.5) else COMMA + glossed("aber:but"))
                + self.clause()
            )
        if shape == "verbs":
            subject = self.subject("p")
            return self.clause(subject) + glossed("und:and") + self.clause(Subject(NOTHING, subject.agreement, "p"))
        conjunction, tenses = self.choice(CONJUNCTIONS)
        subordinate = glossed(conjunction) + self.clause(final=True, tenses=tenses)
        if shape == "subordinate":
            return self.clause(tenses=tenses) + GERMAN_COMMA + subordinate
        return self.clause(front=subordinate + COMMA, tenses=tenses)


def written(tokens: tuple[Token, ...]) -> str:
    text = (" ".join(word for word, _ in tokens) + ".").replace(" ,", ",").replace(",,", ",").replace(",.", ".")
    return text[0].upper() + text[1:]


def generate_pairs(count: int, seed: int = 0) -> list[ToyPair]:
    """So many different pairs of 4 to 18 words a side; the first ones are the same for every `count`."""
    grammar, pairs = Grammar(Random(seed)), {}
    while len(pairs) < count:
        phrase = grammar.sentence()
        german, english = ([link for _, link in side if link] for side in (phrase.german, phrase.english))
        nouns = [word for word, _ in phrase.german if word[0].isupper()]
        if (
            4 <= min(len(german), len(english))
            and max(len(german), len(english)) <= 18
            and len(nouns) == len(set(nouns))
        ):
            links = tuple(
                (i, j) for i, source in enumerate(german) for j, target in enumerate(english) if source is target
            )
            source, target = written(phrase.german), written(phrase.english)
            pairs.setdefault(source, ToyPair(source, target, links))
    return list(pairs.values())


def pharaoh(pair: ToyPair) -> str:
    return " ".join(f"{source}-{target}" for source, target in sorted(pair.alignment))


def toy_splits(train: int = 8000, validation: int = 200, test: int = 200, seed: int = 0) -> "DatasetDict":
    """Splits without a common sentence, with the columns `source`, `target` and `alignment` (Pharaoh format)."""
    from datasets import Dataset, DatasetDict

    pairs = iter(generate_pairs(test + validation + train, seed))  # the test set does not depend on the training size
    sizes = {"test": test, "validation": validation, "train": train}
    parts = {split: [next(pairs) for _ in range(size)] for split, size in sizes.items()}
    return DatasetDict(
        {
            split: Dataset.from_dict(
                {
                    "source": [pair.source for pair in parts[split]],
                    "target": [pair.target for pair in parts[split]],
                    "alignment": [pharaoh(pair) for pair in parts[split]],
                }
            )
            for split in ("train", "validation", "test")
        }
    )

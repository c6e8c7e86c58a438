"""German and English sentence pairs with gold word alignments, from a small grammar: data for tests and first runs.

German puts separable prefixes, participles, infinitives and the verbs of subordinate clauses at the end, where English
wants them early: a simultaneous translator has to wait, and the alignments say for how long. A German sentence has one
translation and the other way round, so that a small model can learn both directions almost perfectly.
"""

import re
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from datasets import DatasetDict


@dataclass(frozen=True)
class ToyPair:
    """A sentence, its translation, and 0-based (source word, target word) links between their whitespace words."""

    source: str
    target: str
    alignment: tuple[tuple[int, int], ...]


# --- lexicon: German:English, with _ for a space inside what is aligned as a whole -----------------------------------


def english_form(word: str, ending: str) -> str:
    """Plural or third person (`s`) or regular past (`ed`), of the first word in `look_for`."""
    word, *rest = word.split("_", 1)
    if word.endswith("y") and word[-2] not in "aeiou":
        word = word[:-1] + "ie"
    elif ending == "s" and word.endswith(("s", "x", "ch", "sh", "o")):
        word += "e"
    return "_".join([word.removesuffix("e") + "ed" if ending == "ed" else word + ending, *rest])


class Noun:
    """From `m:Mann/Männer:man/men` or `f:Katze/-n:cat`."""

    def __init__(self, entry: str):
        self.gender, german, english = entry.split(":")
        (singular, plural), (english, *irregular) = german.split("/"), english.split("/")
        plural = singular + plural[1:] if plural.startswith("-") else plural
        self.forms = f"{singular}:{english}", f"{plural}:{irregular[0] if irregular else english_form(english, 's')}"


class Verb:
    """From `an|rufen/ruft/rief/gerufen:call` or `kaufen:buy/bought`: of regular verbs the infinitive is enough."""

    def __init__(self, subjects: str, objects: str, extras: str, entry: str):
        self.subjects, self.objects = subjects, objects  # kinds of nouns; one given twice is drawn twice as often
        self.extras = extras  # keys of EXTRAS
        self.prefix, _, entry = entry.rpartition("|")
        (infinitive, *irregular), (base, *english) = (side.split("/") for side in entry.split(":"))
        stem = infinitive.removesuffix("en")
        weak = stem + ("et" if stem.endswith(("t", "d", "chn")) else "t")
        ge = "" if stem.startswith(("be", "ver")) or stem.endswith("ier") else "ge"
        third, past, participle = irregular or (weak, weak + "e", ge + weak)
        english_past, english_participle = (2 * (english or [english_form(base, "ed")]))[:2]
        self.infinitive = f"{self.prefix}{infinitive}:{base}"
        self.participle = f"{self.prefix}{participle.removeprefix('ist_')}:{english_participle}"
        self.finite = {  # as with I, he, we: an agreement is an index
            "present": [f"{infinitive[:-1]}:{base}", f"{third}:{english_form(base, 's')}", f"{infinitive}:{base}"],
            "past": [f"{german}:{english_past}" for german in (past, past, past.removesuffix("e") + "en")],
        }
        self.auxiliary = (
            "bin:have ist:has sind:have" if "_" in participle else "habe:have hat:has haben:have"
        ).split()


# Kinds: person, animal, food, thing, opening. Nouns that change in the accusative singular are left out.
NOUN_TABLE = {
    "p": """m:Mann/Männer:man/men f:Frau/-en:woman/women n:Kind/-er:child/children n:Mädchen/-:girl n:Baby/-s:baby
        m:Lehrer/-:teacher m:Arzt/Ärzte:doctor m:Freund/-e:friend m:Bruder/Brüder:brother f:Schwester/-n:sister
        f:Mutter/Mütter:mother m:Vater/Väter:father m:Onkel/-:uncle f:Tante/-n:aunt m:König/-e:king f:Hexe/-n:witch""",
    "a": """m:Hund/-e:dog f:Katze/-n:cat n:Pferd/-e:horse m:Vogel/Vögel:bird f:Kuh/Kühe:cow m:Esel/-:donkey
        f:Maus/Mäuse:mouse/mice n:Schwein/-e:pig m:Wolf/Wölfe:wolf/wolves""",
    "f": """m:Apfel/Äpfel:apple f:Birne/-n:pear m:Kuchen/-:cake n:Ei/-er:egg f:Suppe/-n:soup m:Salat/-e:salad
        f:Kartoffel/-n:potato n:Brötchen/-:roll f:Zwiebel/-n:onion""",
    "t": """m:Tisch/-e:table m:Stuhl/Stühle:chair f:Lampe/-n:lamp n:Fahrrad/Fahrräder:bicycle f:Uhr/-en:clock
        n:Bild/-er:picture f:Tasche/-n:bag n:Messer/-:knife/knives m:Hut/Hüte:hat m:Schirm/-e:umbrella""",
    "o": """f:Tür/-en:door n:Fenster/-:window m:Schrank/Schränke:cupboard f:Kiste/-n:box n:Zimmer/-:room
        f:Küche/-n:kitchen n:Haus/Häuser:house n:Büro/-s:office""",
}
NOUNS = {kind: [Noun(entry) for entry in table.split()] for kind, table in NOUN_TABLE.items()}
ADJECTIVES = {
    "pafto": "groß:big klein:small alt:old schön:beautiful hässlich:ugly seltsam:strange",
    "pa": """jung:young stark:strong schwach:weak krank:sick klug:clever hungrig:hungry faul:lazy glücklich:happy
        traurig:sad freundlich:friendly ruhig:calm mutig:brave""",
    "p": "reich:rich arm:poor berühmt:famous stolz:proud höflich:polite",
    "f": "frisch:fresh süß:sweet warm:warm kalt:cold heiß:hot",
    "to": "rot:red blau:blue grün:green weiß:white schwarz:black neu:new schmutzig:dirty billig:cheap",
}
# No English verb is the same in present and past (read, put): the tense of its translation would be open.
VERB_TABLE = {
    ("ppa", "ppaafto", "p"): """sehen/sieht/sah/gesehen:see/saw/seen finden/findet/fand/gefunden:find/found
        suchen:look_for berühren:touch an|schauen:look_at wieder|erkennen/erkennt/erkannte/erkannt:recognize""",
    ("p", "ppafto", ""): """lieben:love hassen:hate brauchen:need zurück|lassen/lässt/ließ/gelassen:abandon
        vergessen/vergisst/vergaß/vergessen:forget/forgot/forgotten""",
    ("p", "p", "p"): """an|rufen/ruft/rief/gerufen:call ein|laden/lädt/lud/geladen:invite vor|stellen:introduce
        kennen|lernen:meet/met auf|wecken:awaken aus|lachen:mock ein|stellen:hire besuchen:visit fragen:ask
        küssen:kiss loben:praise retten:rescue""",
    ("p", "ft", "fp"): """kaufen:buy/bought verkaufen:sell/sold verstecken:hide/hid/hidden ein|packen:pack
        mit|nehmen/nimmt/nahm/genommen:take/took/taken mit|bringen/bringt/brachte/gebracht:bring/brought
        aus|wählen:choose/chose/chosen weg|werfen/wirft/warf/geworfen:throw_away/threw_away/thrown_away""",
    ("p", "to", "cf"): "zeichnen:draw/drew/drawn malen:paint reparieren:repair her|richten:restore",
    ("p", "o", "cf"): "auf|machen:open zu|machen:close ab|schließen/schließt/schloss/geschlossen:lock putzen:clean",
    ("ppa", "f", "p"): "essen/isst/aß/gegessen:eat/ate/eaten auf|essen/isst/aß/gegessen:devour",
    ("p", "f", "cfp"): "kochen:cook zu|bereiten:prepare auf|wärmen:heat bestellen:order",
    ("ppa", "", "p"): """schlafen/schläft/schlief/geschlafen:sleep/slept laufen/läuft/lief/ist_gelaufen:run/ran/run
        warten:wait an|kommen/kommt/kam/ist_gekommen:arrive auf|stehen/steht/stand/ist_gestanden:rise/rose/risen
        auf|wachen/wacht/wachte/ist_gewacht:wake_up/woke_up/woken_up""",
    ("p", "", "mcp"): """arbeiten:work tanzen:dance singen/singt/sang/gesungen:sing/sang/sung lachen:laugh spielen:play
        ein|kaufen:shop/shopped auf|treten/tritt/trat/ist_getreten:perform zu|hören:listen""",
    ("p", "that", ""): """sagen:say/said glauben:believe hoffen:hope behaupten:claim fest|stellen:notice
        an|nehmen/nimmt/nahm/genommen:assume zu|geben/gibt/gab/gegeben:admit/admitted""",
}
VERBS = [Verb(*kinds, entry) for kinds, table in VERB_TABLE.items() for entry in table.split()]
BE = Verb("pppafto", "adjective", "", "sein/ist/war/ist_gewesen:be/was/been")
BE.finite = {"present": ["bin:am", "ist:is", "sind:are"], "past": ["war:was", "war:was", "waren:were"]}
VERBS += 8 * [BE]
MODALS = """kann:can kann:can können:can, muss:must muss:must müssen:must, werde:will wird:will werden:will,
    soll:should soll:should sollen:should, will:want_to will:wants_to wollen:want_to"""
NAMES = "Anna:Anna Peter:Peter Maria:Maria Paul:Paul Julia:Julia Thomas:Thomas Lisa:Lisa Max:Max".split()
PRONOUNS = [("ich:I", 0), ("er:he", 1), ("sie:she", 1), ("wir:we", 2)]  # no they: its verb, not aligned to it, decides
OBJECT_PRONOUNS = "ihn:him sie:her mich:me uns:us".split()
RELATIVE_PRONOUNS = {"m": "der:who", "f": "die:who", "n": "das:who", "plural": "die:who"}
DETERMINERS = (
    "d:the d:the d:the ein:a ein:a ein:a dies:this jed:every kein:no mein:my sein:his unser:our".split(),
    "d:the d:the d:the dies:these kein:no mein:my unser:our zwei:two drei:three : :".split(),
)
ENDINGS = {"m": ("er", "en"), "f": ("e", "e"), "n": ("es", "es"), "plural": ("e", "e")}  # nominative, accusative
EXTRAS = {  # manner, companion, for whom, place
    "m": "leise:quietly, laut:loudly, langsam:slowly, gern:gladly",
    "c": "mit:with Clara:Clara, mit:with ihm:him, ohne:without Karl:Karl, mit:with drei:three Kollegen:colleagues",
    "f": "für:for Eva:Eva, für:for sie:her, für:for Emil:Emil, für:for seine:his Großmutter:grandmother",
    "p": """im:in_the Park:park, im:in_the Garten:garden, am:at_the Strand:beach, am:at_the Bahnhof:station, hier:here,
        zu_Hause:at_home, auf:on der:the Straße:street, in:in der:the Stadt:city, im:in_the Museum:museum,
        neben:beside dem:the Fluss:river, hinter:behind dem:the Theater:theater, in:in Berlin:Berlin""",
}
ANY_TIME = "oft:often, am:on Montag:Monday, im:in Sommer:summer, am:in_the Abend:evening, heute:today,"
TIMES = {
    "present": ANY_TIME + "jetzt:now, manchmal:sometimes, jeden:every Tag:day, jede:every Woche:week",
    "past": ANY_TIME + "gestern:yesterday, letzte:last Woche:week, letztes:last Jahr:year",
    "perfect": "heute:today, oft:often, kürzlich:recently, diese:this Woche:week, dieses:this Jahr:year",
    "modal": ANY_TIME + "morgen:tomorrow, bald:soon, nächste:next Woche:week",
}
TENSES = ["present", "present", "past", "past", "perfect", "modal"]
CONJUNCTIONS = [("weil:because", TENSES), ("obwohl:although", TENSES), ("wenn:if", ["present"])]


# --- grammar ---------------------------------------------------------------------------------------------------------

Token = tuple[str, object]  # a word and its link; words of the two sides that share a link are aligned


@dataclass(frozen=True)
class Phrase:
    german: tuple[Token, ...] = ()
    english: tuple[Token, ...] = ()

    def __add__(self, other: "Phrase") -> "Phrase":
        return Phrase(self.german + other.german, self.english + other.english)


@dataclass(frozen=True)
class Subject:
    phrase: Phrase
    agreement: int
    kind: str


def gloss(text: str) -> Phrase:
    """A phrase with the same order on both sides, such as `am:in_the Abend:evening`."""
    pairs = [(*pair.split(":"), object()) for pair in text.split()]
    german = tuple((word, link) for words, _, link in pairs for word in words.split("_"))
    return Phrase(german, tuple((word, link) for _, words, link in pairs for word in words.split("_")))


NOTHING, GERMAN_COMMA, COMMA = Phrase(), Phrase(((",", None),)), Phrase(((",", None),), ((",", None),))


def noun_phrase(noun: Noun, determiner: str, adjective: str = "", plural: bool = False, case: int = 0) -> Phrase:
    """Gender and case (0 nominative, 1 accusative) show in the ending of the determiner, or else of the adjective."""
    stem, article = determiner.split(":")
    ending = ENDINGS["plural" if plural else noun.gender][case]
    shown = stem in ("d", "dies", "jed") or (stem.endswith(("in", "er")) and ending in ("e", "en"))
    phrase = gloss(noun.forms[plural])
    if adjective:
        weak = "en" if plural or ending == "en" else "e"
        phrase = gloss(adjective.replace(":", (weak if shown else ending) + ":")) + phrase
    if article == "a" and phrase.english[0][0].startswith(tuple("aeiou")):
        article = "an"
    word = {"de": "die", "des": "das"}.get(stem + ending, stem + ending) if shown else stem
    return gloss(f"{word}:{article}") + phrase if stem else phrase


class Grammar:
    """Draws phrases, clauses and sentences."""

    def __init__(self, random: Random, every: int = 1):
        self.nouns = {kind: nouns[::every] for kind, nouns in NOUNS.items()}
        self.adjectives = {kinds: table.split()[::every] for kinds, table in ADJECTIVES.items()}
        self.verbs = VERBS[::every]
        self.random, self.choice = random, random.choice

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def adjective(self, kind: str) -> str:
        return self.choice([word for kinds, words in self.adjectives.items() if kind in kinds for word in words])

    def noun_phrase(self, kind: str, case: int, relative: bool = False) -> tuple[Phrase, int]:
        """With its agreement."""
        if kind == "p" and self.chance(0.15):
            return gloss(self.choice(NAMES)), 1
        noun, plural = self.choice(self.nouns[kind]), self.chance(0.25)
        determiner = self.choice(DETERMINERS[plural])
        phrase = noun_phrase(noun, determiner, self.adjective(kind) if self.chance(0.35) else "", plural, case)
        if relative and kind == "p" and not determiner.endswith((":my", ":his", ":our")) and self.chance(0.15):
            who = Subject(gloss(RELATIVE_PRONOUNS["plural" if plural else noun.gender]), 1 + plural, kind)
            phrase += GERMAN_COMMA + self.clause(who, final=True) + GERMAN_COMMA
        return phrase, 1 + plural

    def subject(self, kinds: str) -> Subject:
        kind = self.choice(kinds)
        if kind == "p" and self.chance(0.25):
            pronoun, agreement = self.choice(PRONOUNS)
            return Subject(gloss(pronoun), agreement, kind)
        if kind == "p" and self.chance(0.08):
            return Subject(gloss(" und:and ".join(self.random.sample(NAMES, 2))), 2, kind)
        return Subject(*self.noun_phrase(kind, 0, relative=True), kind)

    def complements(self, verb: Verb, subject: Subject) -> tuple[Phrase, Phrase, Phrase]:
        """A pronoun, which comes before the time in German; others; a clause, which comes after all verbs."""
        pronoun = others = NOTHING
        if verb.objects == "that":
            return pronoun, others, GERMAN_COMMA + gloss("dass:that") + self.clause(final=True) + GERMAN_COMMA
        if verb.objects == "adjective":
            others = gloss(("sehr:very " if self.chance(0.3) else "") + self.adjective(subject.kind))
        elif verb.objects:
            kind = self.choice(verb.objects)
            if kind == "p" and self.chance(0.2):  # of the first person only where that cannot be reflexive
                pronoun = gloss(self.choice(OBJECT_PRONOUNS[: 4 if subject.agreement == 1 else 2]))
            else:
                others, _ = self.noun_phrase(kind, 1)
        for extra in verb.extras:
            others += gloss(self.choice(EXTRAS[extra].split(","))) if self.chance(0.2) else NOTHING
        return pronoun, others, NOTHING

    def predicate(self, verb: Verb, tense: str, agreement: int, final: bool) -> tuple[Phrase, Phrase]:
        """The German finite verb, and what else goes to the end; one English word for both is in the first."""
        if tense == "perfect":
            return gloss(verb.auxiliary[agreement]), gloss(verb.participle)
        if tense == "modal":
            return gloss(self.choice(MODALS.split(",")).split()[agreement]), gloss(verb.infinitive)
        german, english = verb.finite[tense][agreement].split(":")
        if final or not verb.prefix:
            return gloss(f"{verb.prefix}{german}:{english}"), NOTHING
        both = gloss(f"{german}_{verb.prefix}:{english}")
        return Phrase(both.german[:1], both.english), Phrase(both.german[1:])

    def clause(
        self, subject: Subject | None = None, front: Phrase = NOTHING, final: bool = False, tenses: list[str] = TENSES
    ) -> Phrase:
        """A main clause, its finite verb in second place, or with `final` a subordinate one."""
        verb = self.choice([verb for verb in self.verbs if subject is None or subject.kind in verb.subjects])
        subject, tense = subject or self.subject(verb.subjects), self.choice(tenses)
        who, (finite, rest) = subject.phrase, self.predicate(verb, tense, subject.agreement, final)
        pronoun, others, that = self.complements(verb, subject)
        time = gloss(self.choice(TIMES[tense].split(","))) if self.chance(0.4) else NOTHING
        if not final and front is NOTHING and who is not NOTHING and self.chance(0.5):
            front, time = time, NOTHING
        english = front + who + finite + rest + pronoun + others + time
        middle = pronoun + time + others
        if final:
            german = who + middle + rest + finite
        else:
            german = (who + finite if front is NOTHING else front + finite + who) + middle + rest
        return Phrase(german.german, english.english) + that

    def sentence(self) -> Phrase:
        shape = self.choice(["simple"] * 4 + ["clauses", "verbs", "subordinate", "subordinate", "fronted"])
        if shape == "simple":
            return self.clause()
        if shape == "clauses":
            return (
                self.clause() + (gloss("und:and") if self.chance(0.5) else COMMA + gloss("aber:but")) + self.clause()
            )
        if shape == "verbs":
            subject, tenses = self.subject("p"), [self.choice(TENSES)]
            again = Subject(NOTHING, subject.agreement, subject.kind)
            return self.clause(subject, tenses=tenses) + gloss("und:and") + self.clause(again, tenses=tenses)
        conjunction, tenses = self.choice(CONJUNCTIONS)
        subordinate = gloss(conjunction) + self.clause(final=True, tenses=tenses)
        if shape == "subordinate":
            return self.clause(tenses=tenses) + GERMAN_COMMA + subordinate
        return self.clause(front=subordinate + COMMA, tenses=tenses)


# --- pairs -----------------------------------------------------------------------------------------------------------


def written(tokens: tuple[Token, ...]) -> str:
    text = re.sub("( ,)+", ",", " ".join(word for word, _ in tokens)).rstrip(",")
    return f"{text[0].upper()}{text[1:]}."


def as_pair(phrase: Phrase) -> ToyPair:
    source, target = ([link for _, link in side if link is not None] for side in (phrase.german, phrase.english))
    alignment = ((i, j) for i, link in enumerate(source) for j, other in enumerate(target) if link is other)
    return ToyPair(written(phrase.german), written(phrase.english), tuple(alignment))


def generate_pairs(count: int, seed: int = 0, max_words: int = 18, every: int = 1) -> list[ToyPair]:
    """So many different pairs of 4 to `max_words` words a side; a longer list of a seed begins with a shorter one.

    `every` thins the lexicon: with 2, every second noun, adjective and verb is used.
    """
    grammar, pairs = Grammar(Random(seed), every), {}
    while len(pairs) < count:
        pair = as_pair(grammar.sentence())
        lengths = len(pair.source.split()), len(pair.target.split())
        if 4 <= min(lengths) and max(lengths) <= max_words:
            pairs.setdefault(pair.source, pair)
    return list(pairs.values())


def pharaoh(pair: ToyPair) -> str:
    return " ".join(f"{source}-{target}" for source, target in sorted(pair.alignment))


def toy_splits(
    train: int = 30000, validation: int = 200, test: int = 1000, seed: int = 0, max_words: int = 10, every: int = 6
) -> "DatasetDict":
    """Splits without a common sentence; their columns are `source`, `target` and `alignment` (Pharaoh format).

    By default short sentences over a sixth of the lexicon, which a small model learns in minutes.
    """
    from datasets import Dataset, DatasetDict

    held_out = test + validation  # drawn first: it does not change with the size of the training set
    pairs = generate_pairs(held_out + train, seed, max_words, every)
    rows = [{"source": pair.source, "target": pair.target, "alignment": pharaoh(pair)} for pair in pairs]
    spans = {"train": range(held_out, len(rows)), "validation": range(test, held_out), "test": range(test)}
    table = Dataset.from_list(rows)
    return DatasetDict({split: table.select(span) for split, span in spans.items()})

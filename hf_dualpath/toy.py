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
class Subject:
    phrase: Phrase
    agreement: int  # 0, 1, 2: verbs as with I, he, we
    kind: str


@dataclass(frozen=True)
class Verb:
    subjects: str  # kinds of nouns, keys of NOUNS; one written twice is drawn twice as often
    objects: str
    extras: str  # keys of EXTRAS
    prefix: str
    auxiliary: tuple[Pair, ...]
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
VERBS = [
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
        ("ppa", "", "p"): """schlafen/schläft/schlief/geschlafen sleep/slept, laufen/läuft/lief/ist_gelaufen run/ran/run,
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
MODALS = """kann kann können can can can, muss muss müssen must must must, soll soll sollen should should should,
    werde wird werden will will will, will will wollen want_to wants_to want_to""".split(",")
NAMES = "Anna Peter Maria Paul Julia Thomas Lisa Max".split()
PRONOUNS = "ich I 0, er he 1, sie she 1, wir we 2, sie they 2"
OBJECT_PRONOUNS = "ihn:him sie:her mich:me uns:us".split()
SINGULAR = "d the, d the, d the, d the, ein a, ein a, ein a, dies this, jed every, kein no, mein my, sein his, unser our"
PLURAL = "d the, d the, d the, dies these, kein no, mein my, unser our, zwei two, drei three, - -, - -"
FREQUENCIES = "oft:often immer:always selten:rarely manchmal:sometimes".split()
EXTRAS = {
    "m": "leise:quietly, laut:loudly, langsam:slowly, gern:gladly, geduldig:patiently".split(","),
    "c": """mit:with Freunden:friends, mit:with meinem:my Vater:father, mit:with einer:a Freundin:girlfriend""".split(","),
    "f": """für:for """.split(","),
    "p": """im:in_the Park:park, im:in_the Garten:garden, im:in_the Wald:forest, am:at_the Strand:beach, hier:here,
        zu_Hause:at_home, am:at_the Bahnhof:station, auf:on der:the Straße:street, auf:on der:the Brücke:bridge,
        in:in der:the Stadt:city, in:in der:the Schule:school, neben:beside dem:the Fluss:river, draußen:outside,
        hinter:behind dem:the Theater:theater, in:in Berlin:Berlin, in:in Wien:Vienna""".split(","),
}

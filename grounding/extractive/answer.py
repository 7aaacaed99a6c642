"""Answers a prompt by quoting what stands in it: for where no language model is set.

It reads the messages that any model would be sent, takes what they bring as sources (passages, records, material, what
was said before) apart into sentences, list items and rows of tables, and quotes those that answer the question, each
with its citation. Nothing is made up: a reply is quotations and one line that says so.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any

from grounding.extractive.quotable import Prompt, Unit, read_prompt, units_of
from grounding.retrieval import ASKING, STOP_WORDS, Embedder, EmbedderUnavailable, terms
from grounding.strategy import ENGLISH, LANGUAGES, fold, is_question, is_small_talk, spoken, without_courtesy, words_of

# ---- politeness ----
#
# What is said back, where no language model is set, to small talk and to who asks what can be asked. Pure.


_GREETING = {
    "english": "Hello! Ask me something, and I quote what the documents say. No language model is set; "
    "`./agent-runtime setup` adds one.",
    "german": "Hallo! Fragen Sie mich etwas, und ich zitiere, was in den Dokumenten steht. Es ist kein Sprachmodell "
    "eingestellt; `./agent-runtime setup` fügt eines hinzu.",
    "french": "Bonjour ! Posez-moi une question, et je cite ce que disent les documents. Aucun modèle de langue n'est "
    "configuré ; `./agent-runtime setup` en ajoute un.",
    "spanish": "¡Hola! Pregúnteme algo y cito lo que dicen los documentos. No hay ningún modelo de lenguaje "
    "configurado; `./agent-runtime setup` añade uno.",
}
_ABOUT_ME = {
    "english": "help|help me|help please|please help|i need help|can you help|can you help me|commands|what can you do"
    "|what do you do|what can i ask|what can i ask you|who are you|what are you|how do you work"
    "|how does this work|how do i use you|how do i use this|what do you know|what can you tell me"
    "|what is in your documents|what s in your documents|what documents do you have|which documents do you have"
    "|what are your documents|what do your documents say",
    "german": "hilfe|hilf mir|was kannst du|was können sie|was machst du|was kann ich fragen|wer bist du|wer sind sie"
    "|wie funktionierst du|wie funktioniert das|was weißt du|was steht in deinen dokumenten|welche dokumente hast du",
    "french": "aide|aide moi|aidez moi|que peux tu faire|que pouvez vous faire|qu est ce que tu peux faire"
    "|qu est ce que vous pouvez faire|qui es tu|qui êtes vous|comment ça marche|quels documents as tu"
    "|quels documents avez vous",
    "spanish": "ayuda|ayúdame|qué puedes hacer|que puedes hacer|qué puede hacer|quién eres|quien eres|quién es usted"
    "|cómo funciona|cómo funcionas|qué documentos tienes",
}
"""What people ask of a bot that they do not know."""
_LANGUAGE_OF_HELP = {asked: language for language, phrases in _ABOUT_ME.items() for asked in phrases.split("|")}
_HELP = {
    "english": "I answer from the documents of this workspace{some}: ask me something, and I quote what they say. "
    "`/help` (on Slack `!help`) lists my commands. No language model is set; `./agent-runtime setup` adds one.",
    "german": "Ich antworte aus den Dokumenten dieses Arbeitsbereichs{some}: Fragen Sie mich etwas, und ich zitiere, "
    "was darin steht. `/help` (in Slack `!help`) listet meine Befehle auf. Es ist kein Sprachmodell eingestellt; "
    "`./agent-runtime setup` fügt eines hinzu.",
    "french": "Je réponds à partir des documents de cet espace de travail{some} : posez-moi une question, et je cite "
    "ce qu'ils disent. `/help` (sur Slack `!help`) liste mes commandes. Aucun modèle de langue n'est configuré ; "
    "`./agent-runtime setup` en ajoute un.",
    "spanish": "Respondo a partir de los documentos de este espacio de trabajo{some}: pregúnteme algo y cito lo que "
    "dicen. `/help` (en Slack `!help`) muestra mis comandos. No hay ningún modelo de lenguaje configurado; "
    "`./agent-runtime setup` añade uno.",
}
_WELCOME = {
    "english": "You are welcome.",
    "german": "Gern geschehen.",
    "french": "Je vous en prie.",
    "spanish": "De nada.",
}
_ACKNOWLEDGEMENT = {"english": "All right.", "german": "In Ordnung.", "french": "D'accord.", "spanish": "De acuerdo."}
_YES_OR_NO = {"yes": "english", "yep": "english", "yeah": "english", "no": "english", "nope": "english"}
_YES_OR_NO |= {"sure": "english", "ja": "german", "nein": "german", "oui": "french", "non": "french", "sí": "spanish"}
_GREETS = re.compile(
    r"\?|👋|\b(?:hi+|hello|he+y\w*|hiya|howdy|yo|sup|greetings|morning|afternoon|evening|day|meet you|how|what\W?s up"
    r"|hallo|servus|moin|tag|morgen|abend|grüß\w*|bonjour|bonsoir|salut|coucou|hola|buen[oa]s)\b",
    re.IGNORECASE,
)
_BYE = {"english": "Goodbye!", "german": "Auf Wiedersehen!", "french": "Au revoir !", "spanish": "¡Hasta luego!"}
_THANKS = re.compile(r"\b(?:thank\w*|thx|cheers|dank\w*|merci|gracias)\b", re.IGNORECASE)
_LEAVES = re.compile(
    r"\b(?:bye|goodbye|see you|good night|tschüs+|ciao|auf wiedersehen|bis (?:bald|morgen|später)|gute nacht"
    r"|au revoir|bonne nuit|adi[oó]s|hasta)\b",
    re.IGNORECASE,
)


def small_talk(text: str, sources: Sequence[tuple[str, str]] = ()) -> str:
    """What is said back to *text*, where it is small talk or asks what can be asked here; else nothing."""
    said = " ".join(re.findall(r"\w+", text.casefold()))
    if language := _LANGUAGE_OF_HELP.get(said):
        files = dict.fromkeys(label.strip("[]").split(" › ")[0] for label, _ in sources if label.startswith("["))
        return _HELP[language].format(some=f" ({', '.join(files)})" if files else "")
    if said in _YES_OR_NO:
        return _ACKNOWLEDGEMENT[_YES_OR_NO[said]]
    for language, cues in (("english", ENGLISH), *LANGUAGES.items()):
        if text.strip() and is_small_talk(text, cues):
            if _LEAVES.search(text):
                return _BYE[language]
            if _THANKS.search(text):
                return _WELCOME[language]
            return (_GREETING if _GREETS.search(text) else _ACKNOWLEDGEMENT)[language]
    return ""


# ---- extractive ----


MOST_QUOTED = 3
MOST_CHARACTERS = 700
"""Of all quotations of a reply together."""

_ALL_CUES = spoken(LANGUAGES)
_NUMBER = re.compile(r"\d")
_CAMEL = re.compile(r"(?<=[a-zà-ÿ])(?=[A-Z][a-z])")
_IDENTIFIER = re.compile(r"\b(?=\w*\d)(?=\w*[^\W\d])\w+\b|\b\w+_\w+\b|\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b")
_NAME = re.compile(r"(?<=[\w,;] )[A-ZÀ-Þ][a-zà-ÿ]{2,}")
_POINTER = re.compile(r"\]\([^)\s]+\.(?:md|txt)\b", re.IGNORECASE)
_MONEY = re.compile(
    r"[€$£¥]|\b(?:eur|usd|chf|gbp|euros?|dollars?|pounds?|free|gratis|kostenlos|gratuit)\b", re.IGNORECASE
)
_SUM = re.compile(r"\d\s*(?:[+*×÷^]|times|plus|minus|divided by|mal|geteilt durch|fois)\s*\d", re.IGNORECASE)
_PRICE = re.compile(r"[€$£¥] ?[\d.,]+|[\d.,]+ ?(?:[€$£¥]|euros?\b|dollars?\b)", re.IGNORECASE)
_SPAN = re.compile(
    r"\b(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?|quarters?|sekunden?|minuten?|stunden?|tage?n?|wochen?"
    r"|monate?n?|jahre?n?|secondes?|heures?|jours?|semaines?|mois|ans?|ann[ée]es?|segundos?|minutos?|horas?|d[ií]as?"
    r"|semanas?|mes(?:es)?|años?|times|daily|weekly|monthly|yearly)\b",
    re.IGNORECASE,
)
_DATE = re.compile(
    r"\b(?:(?:end|beginning|start) of|(?:last|next|every|each) (?:\w+ )?(?:day|week|month|year))\b"
    r"|\d{4}-\d\d(?:-\d\d)?|\d{1,2}[:.]\d\d|\b(?:january|february|march|april|may|june|july|august|september|october|november"
    r"|december|(?:mon|tues|wednes|thurs|fri|satur|sun)day|januar|februar|märz|mai|juni|juli|oktober|dezember|montag"
    r"|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag|janvier|février|mars|avril|juin|juillet|août|septembre"
    r"|octobre|novembre|décembre|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|enero|febrero|marzo|abril|mayo"
    r"|junio|julio|agosto|septiembre|octubre|noviembre|diciembre|lunes|martes|miércoles|jueves|viernes|sábado"
    r"|domingo)\b",
    re.IGNORECASE,
)
_WEEKDAY = re.compile(
    r"\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun)days?|daily|montags?|dienstags?|mittwochs?|donnerstags?|freitags?"
    r"|samstags?|sonntags?|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|lunes|martes|miércoles|jueves|viernes"
    r"|sábados?|domingos?)\b",
    re.IGNORECASE,
)
_MEASURE = re.compile(
    r"\d\**\s?(?:characters?|letters?|words?|pages?|[kmc]?m|[km]?g|[mcd]?l|[kmgt]b|%|°|[kmg]?hz|k?w|v|m?a|inch(?:es)?|feet|met(?:re|er)s?|knots|miles)\b"
    r"|\d\s?[%°]",
    re.IGNORECASE,
)
_COUNT_WORDS = re.compile(
    r"\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|sixty|ninety|hundred"
    r"|thousand|million|first|second|third|fourth|half|once|twice|never|no limit|eine?[nr]?|zwei|drei|vier|fünf|sechs"
    r"|sieben|acht|neun|zehn|zwölf|deux|trois|quatre|cinq|sept|huit|neuf|dix|dos|tres|cuatro|cinco|seis|siete|ocho"
    r"|nueve|diez)\b",
    re.IGNORECASE,
)
_PERMISSION = re.compile(
    r"\b(?:not|never|no|none|nobody|nothing|may|must|cannot|can|only|always|allowed|required|forbidden|accepted|free"
    r"|nicht|nie|kein\w*|darf|dürfen|muss|müssen|nur|ne|pas|jamais|aucun\w*|peut|doit|interdit|ningun\w*|nunca|puede"
    r"|debe|prohibido)\b",
    re.IGNORECASE,
)

_ASKS = {
    "money": r"cheap|expensive|billig|günstig|teuer|\bcosts?\b|\bprice\b"
    r"|how much (?:is|are|am|do|does|did|will|would|can|may|for|per)\b"
    r"|wie ?viel|was kostet|combien|quel est le prix|cu[aá]nto|qu[eé] precio",
    "count": r"how many|how much|what (?:number|percentage|discount|limit)|wie ?viele?|combien|cu[aá]nt[oa]s?",
    "span": r"how (?:long|often|quickly|fast|soon|late|old|frequently)|within what|wie (?:lange|oft|schnell|bald)"
    r"|combien de temps|(?:durée|plazo|fréquence)|cu[aá]nto (?:tiempo|dura)|con qu[eé] frecuencia",
    "weekday": r"\b(?:which|what) (?:week)?days?\b|an welchen tagen|quels jours|qué días",
    "measure": r"how (?:long|heavy|deep|tall|wide|high|big|large|far|small|hot|warm|cold|loud)\b"
    r"|wie (?:schwer|tief|hoch|breit|groß|weit|heiß|warm|kalt|laut)\b",
    "time": r"^(?:so |and )?(?:since |until |till |by |from )?when\b|what (?:time|date)|\bwann\b|an welche[mn]"
    r"|\bquand\b|quels? jours?|cu[aá]ndo|qu[eé] d[ií]as?",
    "permission": r"^(?:so |and |but )?(?:is|are|am|can|could|may|must|do|does|did|should|will|has|have|darf|kann|muss"
    r"|ist|sind|gibt|est-ce|peut|puis|puede|es|hay)\b",
}
_COMPARES = re.compile(
    r"\b(?:(?<!at )(?:most|least)|fewest|best|\w{3,}(?<!requ)(?<!inter)(?<!for)(?<!hon)(?<!inv)(?<!prot)est|compar\w+"
    r"|differ\w+|versus|vs|vergleich\w*|unterschied\w*|\w{3,}[iröß]g?ste[nrs]?|meisten|différences?"
    r"|l[ea]s? (?:plus|moins)|diferencias?|(?:el|la|los|las) (?:\w+ )?(?:más|menos))\b",
    re.IGNORECASE,
)
"""Who asks so wants to see the things side by side."""
_PRICED = re.compile(r"cheap\w*|expensive|billig\w*|günstig\w*|teuer\w*", re.IGNORECASE)
_ASKS_COMPILED = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in _ASKS.items()}

_PRONOUN = re.compile(
    r"(?:It|They|He|She|This|These|That|Those|Er|Sie|Es|Dies\w*|Il|Elle|Ils|Elles|Cela|Ello|Ella|Ellos|Esto|Eso)\b"
)
_FUNCTION_WORDS = {
    "german": "aber alle als am an auch auf aus bei bin bis da das dass dem den der des die du durch ein eine einem "
    "einen einer er es euch für gibt haben hat ich ihr im in ist ja kann kein man mein mich mir mit muss nach nicht "
    "noch nur ob oder sein sich sie sind so über um und uns unser unsere viel viele vom von vor wann warum was welche "
    "welchem welchen welcher welches wenn wer werden wie wieviel wir wird wo zu zum zur darf lange oft",
    "french": "au aux avec ce ces cette combien comment dans de des du elle en est et il ils je jusqu la le les leur "
    "lui ma mais mes moi mon ne nos notre nous on ou où par pas peut pour pourquoi puis qu quand que quel quelle "
    "quelles quels qui sa se ses son sont sur ta te tu un une vos votre vous à y faut doit",
    "spanish": "al como cómo con cual cuál cuando cuándo cuanto cuánto cuántos cuántas de del donde dónde el ella en "
    "es esta este hay la las le lo los me mi mis no nos nuestra nuestro o para pero por porque puede puedo que qué "
    "quien quién se ser si son su sus tiene tu un una y ya yo",
}
_ALL_FUNCTION_WORDS = {language: frozenset(words.split()) for language, words in _FUNCTION_WORDS.items()}
_EMPTY_WORDS = frozenset(
    terms(
        "please tell know explain describe say get give take make need want happen mean thing way document file "
        "handbook company people person someone anybody currently exactly much many long often kind"
    )
)
"""Terms that say little of what a question is about: half a word."""

_KIND_TERMS = {
    "money": frozenset(terms("cost price fee pay paid charge euro")),
    "count": frozenset(terms("number")),
    "span": frozenset(terms("late old fast quick quickly soon")),
    "time": frozenset(terms("date time")),
    "weekday": frozenset(terms("day days weekday weekdays")),
}
"""Terms that ask for a kind of answer, and need not stand in it."""

_FRAMING = {
    "english": "No language model is set, so this is quoted word for word; `./agent-runtime setup` adds one.",
    "german": "Es ist kein Sprachmodell eingestellt, deshalb ist dies wörtlich zitiert; `./agent-runtime setup` fügt "
    "eines hinzu.",
    "french": "Aucun modèle de langue n'est configuré : ceci est donc une citation ; `./agent-runtime setup` en ajoute "
    "un.",
    "spanish": "No hay ningún modelo de lenguaje configurado, así que esto es una cita literal; "
    "`./agent-runtime setup` añade uno.",
}
_NOTHING = {
    "english": "Nothing that I was given answers this. No language model is set, so I can only quote; "
    "`./agent-runtime setup` adds one.",
    "german": "Nichts von dem, was mir vorliegt, beantwortet das. Es ist kein Sprachmodell eingestellt, deshalb kann "
    "ich nur zitieren; `./agent-runtime setup` fügt eines hinzu.",
    "french": "Rien de ce qui m'a été donné ne répond à cela. Aucun modèle de langue n'est configuré : je ne peux que "
    "citer ; `./agent-runtime setup` en ajoute un.",
    "spanish": "Nada de lo que tengo responde a esto. No hay ningún modelo de lenguaje configurado, así que solo puedo "
    "citar; `./agent-runtime setup` añade uno.",
}


async def reply(messages: Sequence[Mapping[str, Any]], embedder: Embedder | None) -> str:
    """The answer to *messages* (OpenAI's form). *embedder* compares meanings; without it only words count."""
    prompt = _read(messages)
    language = language_of(prompt.question)
    if talk := small_talk(prompt.question, prompt.sources):
        return talk
    quoted = await _quotation(prompt, embedder)
    return f"{quoted}\n\n{_FRAMING[language]}" if quoted else _NOTHING[language]


async def quotation(messages: Sequence[Mapping[str, Any]], embedder: Embedder | None) -> str:
    """What *messages* bring to answer their question, word for word with its citations; empty where nothing does."""
    return await _quotation(_read(messages), embedder)


def _read(messages: Sequence[Mapping[str, Any]]) -> Prompt:
    prompt = read_prompt(messages)
    return replace(prompt, question=without_courtesy(prompt.question, _ALL_CUES))


async def _quotation(prompt: Prompt, embedder: Embedder | None) -> str:
    found = await asyncio.to_thread(_answers, prompt)
    asked = await asyncio.to_thread(Asked, prompt.question, found)
    nearness = await _nearness(prompt.question, asked, found, embedder)
    chosen = await asyncio.to_thread(choose, asked, found, nearness)
    return _quoted(chosen)


def _answers(prompt: Prompt) -> list[Unit]:
    """The units of *prompt* but for what was asked: a question does not answer one, however often it was put."""
    asked = words_of(prompt.question)
    return [
        unit
        for unit in units_of(prompt.sources)
        if words_of(unit.said)[-len(asked) :] != asked
        and not (unit.label == "(conversation)" and unit.said.endswith("?"))
    ]


def language_of(text: str) -> str:
    """The language that most function words of *text* belong to; English where none does."""
    words = words_of(text)
    counts = {language: sum(word in known for word in words) for language, known in _ALL_FUNCTION_WORDS.items()}
    english = sum(word in STOP_WORDS for word in words)
    best = max(counts, key=lambda language: counts[language])
    return best if counts[best] > english else "english"


class Asked:
    """A question, its terms with their weights among *units*, and what kind of answer it wants."""

    def __init__(self, question: str, units: Sequence[Unit]) -> None:
        self.question = question
        language = language_of(question)
        empty = _ALL_FUNCTION_WORDS.get(language, frozenset())
        said = {term for word in words_of(question) if word not in empty for term in terms(word)}
        said = said - ASKING or said
        within = [_term_set(f"{unit.said} {unit.lead} {unit.heading}") for unit in units]
        df = Counter(term for one in within for term in said if term in one)
        total = len(units) or 1
        most = math.log(1 + total)
        self.kinds = [kind for kind, pattern in _ASKS_COMPILED.items() if pattern.search(question.strip())]
        compares = [match[0] for match in _COMPARES.finditer(question)]
        self.compares = bool(compares)
        self.is_question = bool(is_question(question, _ALL_CUES))
        named = frozenset(term for kind in self.kinds for term in _KIND_TERMS.get(kind, ()))
        named |= _term_set(" ".join([*compares, *_PRICED.findall(question)]))
        amounts = frozenset(term for term in said if term.isdigit() and not df[term])
        if amounts:
            named |= amounts | _KIND_TERMS["money"]
        self.weights = {
            term: (1 + math.log((total + 1) / (df[term] + 1)) / most)
            * (0.5 if term in _EMPTY_WORDS else 0.25 if term in named else 1.0)
            for term in sorted(said)
        }
        names = _names_in(question) & set(self.weights)
        for term in names & {term for word in _IDENTIFIER.findall(question) for term in terms(word)}:
            self.weights[term] *= 2
        topics = _term_set(" ".join({unit.topic for unit in units}))
        self.known = UNKNOWN_NAME ** sum(1 for name in names if not df[name] and name not in topics)
        """How much of what a unit says can count."""
        self.pairs = list(pairwise(terms(question)))

    def fits(self, unit: Unit) -> float:
        """Whether *unit* has what such a question asks for: from -1 to 1."""
        text = unit.said
        amount = bool(_NUMBER.search(text) or _COUNT_WORDS.search(text))
        span = bool(_SPAN.search(f"{text} {unit.lead}")) and amount
        other = _DATE.sub("", _PRICE.sub("", text))
        has = {
            "money": bool(_MONEY.search(text)),
            "count": bool(_NUMBER.search(other) or _COUNT_WORDS.search(other)),
            "span": span,
            "time": bool(_DATE.search(text)) or span,
            "weekday": bool(_WEEKDAY.search(text)),
            "measure": bool(_MEASURE.search(text)),
            "permission": bool(_PERMISSION.search(text)),
        }
        wanted = [
            kind for kind in self.kinds if kind != "permission" and (kind != "count" or "money" not in self.kinds)
        ]
        if wanted:
            return 1.0 if any(has[kind] for kind in wanted) else -1.0
        return 0.5 if "permission" in self.kinds and has["permission"] else 0.0


def _names_in(question: str) -> set[str]:
    """The terms of what *question* calls by its name: words with a capital inside a sentence, and identifiers."""
    capitals = _NAME.findall(question) if language_of(question) != "german" else []
    return {term for word in (*capitals, *_IDENTIFIER.findall(question)) for term in terms(word)}


@dataclass(frozen=True, slots=True)
class Nearness:
    """By meaning: of each unit to the question, and of the question's terms to words of the sources."""

    units: Sequence[float]
    words: Mapping[str, Mapping[str, float]]


async def _nearness(question: str, asked: Asked, units: Sequence[Unit], embedder: Embedder | None) -> Nearness | None:
    if embedder is None or not units:
        return None
    terms_asked = list(asked.weights)
    originals = _originals(question)
    words = sorted(
        {word for unit in units for word in words_of(f"{unit.said} {unit.lead} {unit.heading}") if len(word) > 2}
    )
    texts = [question, *(f"{unit.heading}. {unit.lead} {unit.said}" for unit in units)]
    try:
        vectors = await embedder.embed_documents(texts)
        near = await embedder.embed_documents([*(originals.get(term, term) for term in terms_asked), *words])
    except EmbedderUnavailable:
        return None
    return await asyncio.to_thread(_compared, vectors, near, terms_asked, words)


def _compared(
    vectors: Sequence[Sequence[float]], near: Sequence[Sequence[float]], asked: Sequence[str], words: Sequence[str]
) -> Nearness:
    import numpy as np

    whole = np.asarray(vectors, dtype=np.float32)
    single = np.asarray(near, dtype=np.float32)
    alike = single[: len(asked)] @ single[len(asked) :].T
    table: dict[str, dict[str, float]] = {}
    for row, term in enumerate(asked):
        close = np.nonzero(alike[row] >= NEAR_WORD)[0]
        found = table.setdefault(term, {})
        for at in close.tolist():
            for stem in terms(words[at]):
                found[stem] = max(found.get(stem, 0.0), float(alike[row, at]))
    return Nearness((whole[1:] @ whole[0]).tolist(), table)


NEAR_WORD = 0.45
"""From this cosine on two words are taken for related."""
RELATED = 0.8
IN_LEAD, IN_HEADING, IN_TOPIC = 0.8, 0.9, 0.5
"""What a word counts that stands not in what is quoted, but above it."""
BY_WORDS, BY_MEANING, BY_KIND, BY_RANK, BY_PAIRS, BY_TABLE = 0.6, 0.4, 0.08, 0.05, 0.1, 0.15
OTHER_KIND = 0.55
"""What is left of the score of a unit that has no number where a number is asked for, and so on."""
UNKNOWN_NAME = 0.7
"""What is left of all scores where the question names something that no source does."""
ENOUGH_WORDS, ENOUGH = 0.3, 0.46
"""The least share of the question's words, and the least score, with which a unit is an answer."""
ALIKE = 0.75
"""What half of the units below one heading need of the best one's score for all of them to be quoted: it is the heading
that answers."""
ALSO, ALSO_OF_KEYWORDS = 0.85, 0.75
"""What another unit needs of the best one's score to be quoted beside it."""


def _term_set(text: str) -> frozenset[str]:
    return frozenset(terms(fold(_CAMEL.sub(" ", text)))) | frozenset(terms(fold(text)))


def _originals(question: str) -> dict[str, str]:
    return {term: word for word in words_of(question) for term in terms(word)}


@dataclass(frozen=True, slots=True)
class Scored:
    """How well a unit answers: ``words`` is the share of the question's words that it has, ``own`` without what stands
    above it."""

    unit: Unit
    score: float
    words: float
    own: float


def score(asked: Asked, units: Sequence[Unit], nearness: Nearness | None) -> list[Scored]:
    """All *units* with their scores, in their order."""
    total = sum(asked.weights.values()) or 1.0
    scored = []
    for number, unit in enumerate(units):
        own, lead, heading, topic = (_term_set(text) for text in (unit.said, unit.lead, unit.heading, unit.topic))
        words = alone = 0.0
        for term, weight in asked.weights.items():
            related = nearness.words.get(term, {}) if nearness else {}
            here = _match(term, own, related)
            above = max(
                IN_LEAD * _match(term, lead, related),
                IN_HEADING * _match(term, heading, related),
                IN_TOPIC * _match(term, topic, related),
            )
            words += weight * max(here, above)
            alone += weight * here
        words, alone = words / total, alone / total
        meaning = nearness.units[number] if nearness else words
        fits = asked.fits(unit)
        value = BY_WORDS * words + BY_MEANING * max(meaning, 0.0) + BY_KIND * max(fits, 0)
        value += BY_RANK / (1 + unit.source)
        value += BY_TABLE * (asked.compares and unit.form == "row")
        shown = frozenset(chain(pairwise(terms(unit.said)), pairwise(terms(unit.lead)), pairwise(terms(unit.heading))))
        value += BY_PAIRS * min(2, sum(pair in shown for pair in asked.pairs)) / 2
        if fits < 0:
            value *= OTHER_KIND
        value *= asked.known
        if unit.said.endswith("?") or _POINTER.search(unit.text):
            value *= 0.6  # a question answers nothing, and a link to a document is not what the document says
        scored.append(Scored(unit, value, words, alone))
    return scored


def _match(term: str, among: frozenset[str], related: Mapping[str, float]) -> float:
    if term in among:
        return 1.0
    if not term.isalpha():
        return 0.0  # numbers and identifiers are the same, or others
    best = max((related[one] for one in among if one in related), default=0.0)
    if len(term) >= 5 and any(_same_beginning(term, one) for one in among):
        best = max(best, 1.0)
    return RELATED * best


def _same_beginning(one: str, other: str) -> bool:
    shared = 0
    for first, second in zip(one, other, strict=False):
        if first != second:
            break
        shared += 1
    return shared >= 5 and shared >= 0.7 * max(len(one), len(other))


def choose(asked: Asked, units: Sequence[Unit], nearness: Nearness | None) -> list[Unit]:
    """What is quoted, in the order of the sources; empty where nothing answers."""
    scored = score(asked, units, nearness)
    best = max(scored, key=lambda one: one.score, default=None)
    if _SUM.search(asked.question) or not any(len(term) > 2 for term in asked.weights):
        return []
    if best is None or best.words < ENOUGH_WORDS or best.score < ENOUGH:
        return []
    group = [one for one in scored if _place(one.unit) == _place(best.unit)]
    ranked = sorted(scored, key=lambda one: -one.score)
    as_good = sum(one.score >= ALIKE * best.score for one in group)
    also = ALSO if asked.is_question else ALSO_OF_KEYWORDS
    if asked.compares and best.unit.form == "row":
        chosen = [one for one in group if one.unit.header == best.unit.header]
    elif len(group) > 1 and best.own <= best.words / 2 and as_good * 2 >= len(group):
        chosen = group
    else:
        chosen = [one for one in ranked if one.score >= also * best.score and one.words >= ENOUGH_WORDS][:MOST_QUOTED]
    kept: set[int] = set()
    for one in [best, *(other for other in chosen if other is not best)]:
        at = scored.index(one)
        whole = {at - 1, at} if _leans_on_the_one_before(units, at) else {at}
        if sum(len(units[place].text) for place in kept | whole) <= MOST_CHARACTERS or not kept:
            kept |= whole
    return [units[at] for at in sorted(kept)]


def _leans_on_the_one_before(units: Sequence[Unit], at: int) -> bool:
    """Whether the sentence begins with a word for what the sentence before it names."""
    unit = units[at]
    return (
        unit.form == "prose"
        and at > 0
        and (units[at - 1].form, _place(units[at - 1])) == ("prose", _place(unit))
        and _PRONOUN.match(unit.said) is not None
    )


def _place(unit: Unit) -> tuple[int, int]:
    return unit.source, unit.section


def _quoted(units: Sequence[Unit]) -> str:
    """*units* as they stand in their sources, each table with its header, each source with its citation behind."""
    pieces: list[str] = []
    for number, unit in enumerate(units):
        before = units[number - 1] if number else None
        same = before is not None and before.label == unit.label
        is_next_row = same and before is not None and before.header == unit.header
        text = f"{unit.header}\n{unit.text}" if unit.header and not is_next_row else unit.text
        joint = "\n\n"
        if before and same and before.form == unit.form != "code":
            joint = " " if unit.form == "prose" else "\n"
        pieces.append((joint if pieces else "") + text)
        after = units[number + 1] if number + 1 < len(units) else None
        if unit.label and (after is None or after.label != unit.label):
            pieces.append((" " if unit.form == "prose" else "\n\n") + unit.label)
    return "".join(pieces)

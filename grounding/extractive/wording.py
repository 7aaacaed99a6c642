"""Texts and patterns of answers without a language model, in English, German, French and Spanish. Data, apart from
`small_talk`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from grounding.retrieval import terms
from grounding.strategy import ENGLISH, LANGUAGES, is_small_talk, joined_cues

# Replies to small talk and to questions about the bot

GREETING = {
    "english": "Hello! Ask me something, and I quote what the documents say. No language model is set; "
    "`./agent-runtime setup` adds one.",
    "german": "Hallo! Fragen Sie mich etwas, und ich zitiere, was in den Dokumenten steht. Es ist kein Sprachmodell "
    "eingestellt; `./agent-runtime setup` fügt eines hinzu.",
    "french": "Bonjour ! Posez-moi une question, et je cite ce que disent les documents. Aucun modèle de langue n'est "
    "configuré ; `./agent-runtime setup` en ajoute un.",
    "spanish": "¡Hola! Pregúnteme algo y cito lo que dicen los documentos. No hay ningún modelo de lenguaje "
    "configurado; `./agent-runtime setup` añade uno.",
}
ABOUT_ME = {
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
"""Questions to a bot that people do not know."""
LANGUAGE_OF_HELP = {asked: language for language, phrases in ABOUT_ME.items() for asked in phrases.split("|")}
HELP = {
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
WELCOME = {
    "english": "You are welcome.",
    "german": "Gern geschehen.",
    "french": "Je vous en prie.",
    "spanish": "De nada.",
}
ACKNOWLEDGEMENT = {"english": "All right.", "german": "In Ordnung.", "french": "D'accord.", "spanish": "De acuerdo."}
YES_OR_NO = {"yes": "english", "yep": "english", "yeah": "english", "no": "english", "nope": "english"}
YES_OR_NO |= {"sure": "english", "ja": "german", "nein": "german", "oui": "french", "non": "french", "sí": "spanish"}
GREETS = re.compile(
    r"\?|👋|\b(?:hi+|hello|he+y\w*|hiya|howdy|yo|sup|greetings|morning|afternoon|evening|day|meet you|how|what\W?s up"
    r"|hallo|servus|moin|tag|morgen|abend|grüß\w*|bonjour|bonsoir|salut|coucou|hola|buen[oa]s)\b",
    re.IGNORECASE,
)
BYE = {"english": "Goodbye!", "german": "Auf Wiedersehen!", "french": "Au revoir !", "spanish": "¡Hasta luego!"}
THANKS = re.compile(r"\b(?:thank\w*|thx|cheers|dank\w*|merci|gracias)\b", re.IGNORECASE)
LEAVES = re.compile(
    r"\b(?:bye|goodbye|see you|good night|tschüs+|ciao|auf wiedersehen|bis (?:bald|morgen|später)|gute nacht"
    r"|au revoir|bonne nuit|adi[oó]s|hasta)\b",
    re.IGNORECASE,
)


def small_talk(text: str, sources: Sequence[tuple[str, str]] = ()) -> str:
    """Return the reply to *text* if it is small talk or asks what the bot can do; else empty."""
    words = " ".join(re.findall(r"\w+", text.casefold()))
    if language := LANGUAGE_OF_HELP.get(words):
        files = dict.fromkeys(label.strip("[]").split(" › ")[0] for label, _ in sources if label.startswith("["))
        return HELP[language].format(some=f" ({', '.join(files)})" if files else "")
    if words in YES_OR_NO:
        return ACKNOWLEDGEMENT[YES_OR_NO[words]]
    for language, cues in (("english", ENGLISH), *LANGUAGES.items()):
        if text.strip() and is_small_talk(text, cues):
            if LEAVES.search(text):
                return BYE[language]
            if THANKS.search(text):
                return WELCOME[language]
            return (GREETING if GREETS.search(text) else ACKNOWLEDGEMENT)[language]
    return ""


# Questions, and the kinds of answers that they want

ALL_CUES = joined_cues(LANGUAGES)
NUMBER = re.compile(r"\d")
CAMEL = re.compile(r"(?<=[a-zà-ÿ])(?=[A-Z][a-z])")
IDENTIFIER = re.compile(r"\b(?=\w*\d)(?=\w*[^\W\d])\w+\b|\b\w+_\w+\b|\b[A-Z][a-z]+(?:[A-Z][a-z]+)+\b")
NAME = re.compile(r"(?<=[\w,;] )[A-ZÀ-Þ][a-zà-ÿ]{2,}")
POINTER = re.compile(r"\]\([^)\s]+\.(?:md|txt)\b", re.IGNORECASE)
MONEY = re.compile(
    r"[€$£¥]|\b(?:eur|usd|chf|gbp|euros?|dollars?|pounds?|free|gratis|kostenlos|gratuit)\b", re.IGNORECASE
)
SUM = re.compile(r"\d\s*(?:[+*×÷^]|times|plus|minus|divided by|mal|geteilt durch|fois)\s*\d", re.IGNORECASE)
PRICE = re.compile(r"[€$£¥] ?[\d.,]+|[\d.,]+ ?(?:[€$£¥]|euros?\b|dollars?\b)", re.IGNORECASE)
SPAN = re.compile(
    r"\b(?:seconds?|minutes?|hours?|days?|weeks?|months?|years?|quarters?|sekunden?|minuten?|stunden?|tage?n?|wochen?"
    r"|monate?n?|jahre?n?|secondes?|heures?|jours?|semaines?|mois|ans?|ann[ée]es?|segundos?|minutos?|horas?|d[ií]as?"
    r"|semanas?|mes(?:es)?|años?|times|daily|weekly|monthly|yearly)\b",
    re.IGNORECASE,
)
DATE = re.compile(
    r"\b(?:(?:end|beginning|start) of|(?:last|next|every|each) (?:\w+ )?(?:day|week|month|year))\b"
    r"|\d{4}-\d\d(?:-\d\d)?|\d{1,2}[:.]\d\d|\b(?:january|february|march|april|may|june|july|august|september|october|november"
    r"|december|(?:mon|tues|wednes|thurs|fri|satur|sun)day|januar|februar|märz|mai|juni|juli|oktober|dezember|montag"
    r"|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag|janvier|février|mars|avril|juin|juillet|août|septembre"
    r"|octobre|novembre|décembre|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|enero|febrero|marzo|abril|mayo"
    r"|junio|julio|agosto|septiembre|octubre|noviembre|diciembre|lunes|martes|miércoles|jueves|viernes|sábado"
    r"|domingo)\b",
    re.IGNORECASE,
)
WEEKDAY = re.compile(
    r"\b(?:(?:mon|tues|wednes|thurs|fri|satur|sun)days?|daily|montags?|dienstags?|mittwochs?|donnerstags?|freitags?"
    r"|samstags?|sonntags?|lundi|mardi|mercredi|jeudi|vendredi|samedi|dimanche|lunes|martes|miércoles|jueves|viernes"
    r"|sábados?|domingos?)\b",
    re.IGNORECASE,
)
MEASURE = re.compile(
    r"\d\**\s?(?:characters?|letters?|words?|pages?|[kmc]?m|[km]?g|[mcd]?l|[kmgt]b|%|°|[kmg]?hz|k?w|v|m?a|inch(?:es)?|feet|met(?:re|er)s?|knots|miles)\b"
    r"|\d\s?[%°]",
    re.IGNORECASE,
)
COUNT_WORDS = re.compile(
    r"\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|fifteen|twenty|thirty|sixty|ninety|hundred"
    r"|thousand|million|first|second|third|fourth|half|once|twice|never|no limit|eine?[nr]?|zwei|drei|vier|fünf|sechs"
    r"|sieben|acht|neun|zehn|zwölf|deux|trois|quatre|cinq|sept|huit|neuf|dix|dos|tres|cuatro|cinco|seis|siete|ocho"
    r"|nueve|diez)\b",
    re.IGNORECASE,
)
PERMISSION = re.compile(
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
COMPARES = re.compile(
    r"\b(?:(?<!at )(?:most|least)|fewest|best|\w{3,}(?<!requ)(?<!inter)(?<!for)(?<!hon)(?<!inv)(?<!prot)est|compar\w+"
    r"|differ\w+|versus|vs|vergleich\w*|unterschied\w*|\w{3,}[iröß]g?ste[nrs]?|meisten|différences?"
    r"|l[ea]s? (?:plus|moins)|diferencias?|(?:el|la|los|las) (?:\w+ )?(?:más|menos))\b",
    re.IGNORECASE,
)
"""Such a question wants to see things side by side."""
PRICED = re.compile(r"cheap\w*|expensive|billig\w*|günstig\w*|teuer\w*", re.IGNORECASE)
QUESTION_KINDS = {kind: re.compile(pattern, re.IGNORECASE) for kind, pattern in _ASKS.items()}

PRONOUN = re.compile(
    r"(?:It|They|He|She|This|These|That|Those|Er|Sie|Es|Dies\w*|Il|Elle|Ils|Elles|Cela|Ello|Ella|Ellos|Esto|Eso)\b"
)
_WORDS = {
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
FUNCTION_WORDS = {language: frozenset(words.split()) for language, words in _WORDS.items()}
EMPTY_WORDS = frozenset(
    terms(
        "please tell know explain describe say get give take make need want happen mean thing way document file "
        "handbook company people person someone anybody currently exactly much many long often kind"
    )
)
"""Terms that say little about the subject of a question; they count half."""

KIND_TERMS = {
    "money": frozenset(terms("cost price fee pay paid charge euro")),
    "count": frozenset(terms("number")),
    "span": frozenset(terms("late old fast quick quickly soon")),
    "time": frozenset(terms("date time")),
    "weekday": frozenset(terms("day days weekday weekdays")),
}
"""Terms that ask for a kind of answer and need not be in it."""

FRAMING = {
    "english": "No language model is set, so this is quoted word for word; `./agent-runtime setup` adds one.",
    "german": "Es ist kein Sprachmodell eingestellt, deshalb ist dies wörtlich zitiert; `./agent-runtime setup` fügt "
    "eines hinzu.",
    "french": "Aucun modèle de langue n'est configuré : ceci est donc une citation ; `./agent-runtime setup` en ajoute "
    "un.",
    "spanish": "No hay ningún modelo de lenguaje configurado, así que esto es una cita literal; "
    "`./agent-runtime setup` añade uno.",
}
NOTHING = {
    "english": "Nothing that I was given answers this. No language model is set, so I can only quote; "
    "`./agent-runtime setup` adds one.",
    "german": "Nichts von dem, was mir vorliegt, beantwortet das. Es ist kein Sprachmodell eingestellt, deshalb kann "
    "ich nur zitieren; `./agent-runtime setup` fügt eines hinzu.",
    "french": "Rien de ce qui m'a été donné ne répond à cela. Aucun modèle de langue n'est configuré : je ne peux que "
    "citer ; `./agent-runtime setup` en ajoute un.",
    "spanish": "Nada de lo que tengo responde a esto. No hay ningún modelo de lenguaje configurado, así que solo puedo "
    "citar; `./agent-runtime setup` añade uno.",
}

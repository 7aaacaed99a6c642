"""What is said back, where no language model is set, to small talk and to who asks what can be asked. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from grounding.cues.english import ENGLISH
from grounding.cues.languages import LANGUAGES
from grounding.strategy import is_small_talk

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

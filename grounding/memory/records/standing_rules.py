"""Find standing rules in what a person wrote: instructions for later answers, and lasting preferences. Pure.

The patterns are for English, German, French and Spanish. An instruction is an imperative with a sign that it lasts: a
word ("always", "from now on"), a condition ("when I ask about distances"), or answers in general ("keep your answers
short"). A question, a request for this moment, another person's wish or a quoted text is no rule.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from grounding.memory.context_document import is_question, is_unsure, sentences
from grounding.retrieval import term_set, terms

Kind = Literal["instruction", "preference"]
MAX_RULE_CHARACTERS = 240
"""Longer ones are pasted, or say much else."""
MAX_SENTENCE_CHARACTERS = 1000
"""How much of a sentence is searched for a preference, because people state one in passing."""


@dataclass(frozen=True, slots=True)
class StatedRule:
    """A rule in the person's words."""

    text: str
    kind: Kind


def stated_rules(text: str) -> Iterator[StatedRule]:
    """Yield the standing rules that the writer of *text* states, in order."""
    for sentence in own_sentences(text):
        if instruction := _instruction(sentence):
            yield StatedRule(instruction, "instruction")
        elif preference := _preference(sentence):
            yield StatedRule(preference, "preference")


def own_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of *text* that are the writer's own.

    What follows the announcement of a text ("Please proofread this:") is another's, unless the announced text are rules
    for the bot.
    """
    for sentence in sentences(text, MAX_SENTENCE_CHARACTERS):
        yield sentence
        if _ANNOUNCES_TEXT.search(sentence) and not _ANNOUNCES_RULES.search(sentence):
            return


def is_general(rule: str) -> bool:
    """Say whether *rule* may concern every answer: it has no condition, and is no preference about some thing."""
    if _CONDITION.search(rule):
        return False
    return not _PREFERS.search(rule) or bool(_PREFERS_ANSWERS.search(rule))


def contradicts(new: str, old: str) -> bool:
    """Say whether the rules *new* and *old* cannot both hold, or say the same.

    They have the same content words, apart from values of one kind: "always use emojis" and "never use emojis", "answer
    in German" and "answer in French", "metric" and "imperial units".
    """
    new_kinds, new_words = _kinds_and_words(new)
    old_kinds, old_words = _kinds_and_words(old)
    return new_words == old_words and new_kinds == old_kinds and bool(new_words or new_kinds)


# Instructions

_COURTESY = re.compile(
    r"^(?:(?:please|kindly|also|and|so|ok(?:ay)?|oh|hey|hi|hello|note|remember to|remember(?: that)?|btw|by the way|"
    r"(?:can|could|would|will) you(?: please)?|I(?:['’]d| would)? (?:want|like|need|expect|ask) you to|"
    r"you (?:should|must|need to|have to)|make sure (?:that you|you|to)|be sure to|don['’]t forget to|"
    r"bitte|und|merk dir|ich möchte, dass du|du sollst|kannst du|"
    r"s['’]il (?:te|vous) pla[iî]t|et|je (?:veux|voudrais) que tu|peux-tu|"
    r"por favor|y|recuerda(?: que)?|quiero que|puedes)(?=\W)[,:]?\s*)+",
    re.IGNORECASE,
)
_TAG = re.compile(
    r"[\s,;–—-]+(?:ok(?:ay)?|right|alright|by the way|please|thanks|thank you|got it|will you|would you|bitte|danke|"
    r"s['’]il (?:te|vous) pla[iî]t|merci|por favor|gracias)[\s.!?]*$",
    re.IGNORECASE,
)
_POLITE_QUESTION = re.compile(
    r"^(?:please\s+)?(?:can|could|would|will) you\b|^kannst du\b|^peux-tu\b|^¿?puedes\b", re.IGNORECASE
)
_LASTING = r"always|never|immer|stets|nie|niemals|toujours|jamais|siempre|nunca"
_NOT = r"only|just|don['’]t(?: ever)?|do not(?: ever)?|no longer|stop|nur(?: noch)?|kein\w*|ne|no"
_VERBS = (
    r"add|address|answer|ask|assume|avoid|be|begin|call|check|cite|compare|confirm|consider|convert|describe|"
    r"double-check|end|explain|focus|follow|format|give|greet|highlight|ignore|include|indicate|keep|leave|limit|list|"
    r"maintain|make|mention|name|note|offer|omit|order|point|prefer|present|prioriti[sz]e|propose|provide|put|quote|"
    r"recommend|refer|remind|reply|respond|round|say|send|show|skip|speak|specify|spell|start|state|stick|structure|"
    r"suggest|summari[sz]e|talk|tell|translate|treat|use|verify|warn|write|"
    r"(?:add|answer|apologi[sz]|ask|call|end|explain|giv|includ|mention|repeat|say|send|start|suggest|us|writ)ing|"
    # German
    r"(?:antwort|beginn|erklär|erwähn|formulier|frag|füg|halt|list|nenn|prüf|rechn|sag|schreib|übersetz|vermeid|"
    r"verwend|zeig|zitier)(?:e|en)?|(?:be)?nutz(?:e|en)?|duze|sieze|gib|geben|sprich|sprechen|"
    # French
    r"(?:ajout|cit|commenc|donn|évit|expliqu|indiqu|mentionn|montr|parl|précis|propos|résum|utilis|vérifi)e[sz]?|"
    r"écri(?:s|vez)|inclu(?:s|ez)|répond(?:s|ez)|traduis(?:ez)?|tutoie|vouvoie|"
    # Spanish
    r"añad[ea]s?|contest[ae]s?|da(?:me)?|des|dime|empiez[ae]|escrib[ea]s?|evit[ae]s?|expli(?:ca|que)s?|habl[ae]s?|"
    r"háblame|incluy[ea]s?|indi(?:ca|que)s?|mencion[ae]s?|muestr[ae]s?|pon(?:gas)?|respond[ea]s?|respóndeme|resum[ea]s?|"
    r"traduc[ei]|us[ae]s?|utili(?:za|ce)s?|verifi(?:ca|que)s?"
)
_IMPERATIVE = re.compile(
    rf"^(?:n['’])?(?:(?:{_LASTING}|{_NOT})\s+)*(?:n['’])?(?P<verb>{_VERBS})\b(?!['’]s\b)(?:-moi\b)?"
    rf"|^(?:{_LASTING}|nur(?: noch)?|keine?)\s.+\w[^\W\d_]*(?:en|ern|eln)$",  # "immer Versionen nennen"
    re.IGNORECASE,
)
_WISH = re.compile(
    r"^(?:I (?:want|prefer|expect|would like)|I['’]d (?:like|prefer)|ich (?:möchte|will|bevorzuge)|je (?:veux|préfère)|"
    r"(?:yo )?(?:quiero|prefiero))\b",
    re.IGNORECASE,
)
_ALWAYS = re.compile(
    rf"^(?:{_LASTING}|don['’]t ever|do not ever)\b|^\S+\s+(?:always|never)\b"
    r"|^\S+(?:\s+\S+){0,3}?\s+(?:immer|stets|nie|niemals|toujours|jamais|siempre|nunca)\b",
    re.IGNORECASE,
)
_FROM_NOW = re.compile(
    r"(?:^|\s)(?:from (?:now|here|today) on(?:wards?)?|going forward|henceforth|in (?:the )?future|"
    r"for (?:all )?future \w+|"
    r"ab (?:jetzt|sofort|heute)|von (?:jetzt|nun) an|künftig|in zukunft|"
    r"désormais|dorénavant|à partir de maintenant|à l['’]avenir|"
    r"a partir de (?:ahora|hoy)|de ahora en adelante|en adelante|en el futuro|any ?more|any longer)(?:,?\s+|$)",
    re.IGNORECASE,
)
_ASKS_ABOUT = r"(?:asks?|asking|inquire|mention|request|bring up|speak|talk|talking|discuss|have (?:a )?questions?)"
_CONDITION = re.compile(
    r"\b(?:when(?:ever)?|if|every time|each time|any ?time)\s+"
    rf"(?:I(?:['’]m)?\s+(?:\w+ly\s+)?{_ASKS_ABOUT}|you\s+(?:\w+ly\s+)?(?:answer|are asked|explain|recommend|reply|"
    r"respond|suggest|summari[sz]e))\b"
    r"|\b(?:when(?:ever)?|every time|each time)\s+you\s+(?:give|list|show|talk|translate|use|write)\b"
    r"|\b(?:immer wenn|wenn|falls|sobald)\s+(?:ich|du)\b[^,]{0,80}?"
    r"\b(?:frage|erwähne|spreche|bitte|antwortest|schreibst)\b"
    r"|\b(?:quand|lorsque|si|chaque fois que)\s+(?:je|tu)\s+(?:t['’e]|te\s)?\s*"
    r"(?:demand|pos|parl|mentionn|répond|écri)\w*"
    r"|\b(?:cuando|siempre que|si|cada vez que)\s+(?:te\s+)?(?:pregunt|pid|habl|mencion|respond|escrib)\w*",
    re.IGNORECASE,
)
_ASKS_HOW = re.compile(r"\b(?:what|how|why|whether|where|who|for when|remind me to)\b", re.IGNORECASE)
"""Words of a request for advice: "tell me what to say when I ask for a raise"."""
_ANSWERS = (
    r"(?:answers|replies|responses|explanations|summaries|antworten|erklärungen|zusammenfassungen|réponses|explications|"
    r"résumés|respuestas|explicaciones|resúmenes)"
)
_IN_GENERAL = re.compile(
    r"^(?:answer|reply to) all (?:of )?my questions\b|"
    rf"^(?:keep|make|halte) (?:all )?(?:of )?(?:your|the|my|deine) {_ANSWERS}\s|^(?:all )?(?:of )?your {_ANSWERS} "
    r"(?:should|must|need to|have to)\s|^stop \w+ing\s|^(?-i:[Cc]all me [A-Z][\w'’-]+(?: [A-Z][\w'’-]+)?$)",
    re.IGNORECASE,
)
_SAYINGS = re.compile(r"^(?:never|always)\s+(?:mind|give up|say (?:never|die)|look back)\b", re.IGNORECASE)
_ONLY_NOW = re.compile(
    r"\b(?:today|tonight|tomorrow|now|(?:at|for) the moment|"
    r"this (?:one|time|once|morning|afternoon|evening|week|message|answer|reply|e-?mail|letter|text|document|file|code|"
    r"case|sentence|paragraph)|the (?:former|latter)|"
    r"the (?:first|second|third|fourth|last|other) (?:one|option|version|variant|idea|plan|suggestion|draft)|"
    r"heute|morgen|jetzt|gerade|diesmal|dieses mal|aujourd['’]hui|demain|maintenant|cette fois|"
    r"hoy|mañana|ahora|esta vez)\b",
    re.IGNORECASE,
)
"""Words that limit a wish to the moment, to a text at hand, or to alternatives that were just mentioned."""
_REFERENCES = re.compile(
    r"\b(?:its?|them|those|these|that one|this one)\b|\b(?:this|that)(?=\s*(?:[,.;]|$))"
    r"|\b(?:this|that) (?:approach|plan|way|option|idea|path|step)\b",
    re.IGNORECASE,
)
"""Words that refer to something said before. Nobody can resolve them a month later."""
_QUOTED = re.compile(r"^\W*[\"“„«]|[\"”“»][.!?]*$")
_ANNOUNCES_TEXT = re.compile(
    r"^(?:(?:please|can you|could you|would you|help me(?: to)?|bitte|kannst du|peux-tu|puedes),?\s+)*"
    r"(?:analy[sz]e|check|classify|correct|edit|fix|improve|paraphrase|proofread|rephrase|review|rewrite|summari[sz]e|"
    r"translate|korrigiere?|prüfe?|übersetze?|fasse?|traduis|traduire|corrige|résume|traduce|resume)\b"
    r".*\b(?:this|these|following|text|sentences?|paragraph|e-?mail|letter|diesen?|folgenden?|suivant|ce|siguiente|este)\b"
    r"|:\s*$",
    re.IGNORECASE,
)
_ANNOUNCES_RULES = re.compile(
    r"\b(?:remember|follow|observe|respect|obey|keep to|stick to|my (?:rules|preferences|instructions|wishes)|"
    r"merk dir|beachte|halte dich an|respecte|sigue)\b",
    re.IGNORECASE,
)


def _instruction(sentence: str) -> str:
    """Return the instruction for later answers that *sentence* gives; empty if it gives none."""
    said = _TAG.sub("", sentence.rstrip(".!?¡ "))
    asks = is_question(sentence) and said == sentence.rstrip(".!?¡ ")
    if len(said) > MAX_RULE_CHARACTERS or _QUOTED.search(sentence) or (asks and not _POLITE_QUESTION.match(said)):
        return ""
    rule = _COURTESY.sub("", said.lstrip("¿¡ "))
    rest, is_dated = _without(_FROM_NOW, rule)
    rest, condition = _without_condition(rest)
    rest = _COURTESY.sub("", rest).strip(" ,")
    lasts = is_dated or condition or _ALWAYS.match(rest) or _IN_GENERAL.match(rest)
    if not lasts or not (_IMPERATIVE.match(rest) or _IN_GENERAL.match(rest) or _WISH.match(rest)):
        return ""
    if condition and _ASKS_HOW.search(rest):
        return ""
    # "When I ask about a medicine, mention its side effects" explains its pronoun.
    refers = _REFERENCES.search(condition if condition and rule.startswith(condition) else rule)
    if refers or _SAYINGS.match(rest) or _ONLY_NOW.search(rest) or is_unsure(rest[:20]):
        return ""
    return rule if len(terms(rest)) >= 2 else ""


def _without(pattern: re.Pattern[str], text: str) -> tuple[str, bool]:
    """Return *text* without the first match of *pattern*, and whether there was one."""
    rest = pattern.sub(" ", text, count=1)
    return _COURTESY.sub("", rest.strip()), rest != text


def _without_condition(text: str) -> tuple[str, str]:
    """Return *text* without its condition ("when I ask about …"), and the condition; empty if there is none."""
    match = _CONDITION.search(text)
    if match is None:
        return text, ""
    if match.start():
        return text[: match.start()], text[match.start() :]
    condition, _, rest = text.partition(",")
    return rest.strip(), condition


# Preferences

_PREFERS = re.compile(
    r"\bI(?: (?:really|much|always|generally|usually|definitely|strongly|typically|personally|also|still))*"
    r" (?:prefer|prioriti[sz]e)\b(?!\s*[,.;])|\bI['’]ve always preferred\b|\bmy (?:\w+ )?preference (?:is|for)\b"
    r"|\bich bevorzuge\b|\bich ziehe\b(?=.*\bvor\b)|\bmir (?:ist|sind)\b(?=.*\blieber\b)"
    r"|\bje préfère\b|\b(?:yo )?prefiero\b",
    re.IGNORECASE,
)
_PREFERS_ANSWERS = re.compile(
    rf"\b(?:prefer|bevorzuge|préfère|prefiero|is|are|for|sind|ziehe)\s+(?:[\w'’-]+,?\s+){{0,5}}{_ANSWERS}\b",
    re.IGNORECASE,
)
_LIKES_ANSWERS = re.compile(
    r"^I(?:['’]d| would)? (?:like|love|want|prefer|appreciate) (?:to (?:get|have|receive) )?(?:your |my |all )?"
    rf"(?!some |any |more |the |those |these )(?:[\w-]+,? (?:and )?){{1,5}}{_ANSWERS}\b",
    re.IGNORECASE,
)
_ANOTHERS = re.compile(
    r"[\"“„«‘]\s*$|^(?:(?:please|can you|could you),? )*(?:check|correct|draft|paraphrase|proofread|quote|"
    r"rephrase|reply|rewrite|send|summari[sz]e|tell|translate|write)\b"
    r"|(?<!\bI )(?<!\bI['’]ve )(?<!\bI['’]d )\b(?:said|says|saying|told|tells|wrote|writes|asked|asks|repl(?:ied|ies)|"
    r"claim(?:s|ed))\b"
    r"|\b(?:they|people|who|you|some|others) say\b|\b(?:do|did|does|should|would|could|can)\s*$"
    r"|(?:\b(?:not|never|no longer|used to)|n['’]t)\b(?:(?!\b(?:and|but|so|because|since|as)\b)[^,;:.–—])*$",
    re.IGNORECASE,
)
"""Words before a preference that show that it is another person's, part of a text to be edited, denied, or asked for.
"""
_ADDED_CLAUSE = re.compile(
    r"(?:[,;:–—]|\s-)\s*(?:but|so|yet|though|although|can|could|would|will|what|how|is|are|am|do|does|did|which|who|"
    r"where|maybe|perhaps|please|right|ok(?:ay)?|you know|by the way|considering|given|especially|I|I['’]\w+|we['’]\w+|"
    r"and (?:I|I['’]\w+|since|now|then|you|he|she|they))"
    r"\b.*$|\s+(?:but|so (?:that|can|could|I)|and (?:I|I['’]\w+|now|then))\b.*$",
    re.IGNORECASE,
)
"""The rest of a long sentence after the statement itself, mostly a question about it."""
_PURPOSE = re.compile(r"\s+(?:to (?:fully )?\w+|because|since|for|due to)\s.*$", re.IGNORECASE)
_CLAUSE_START = re.compile(r"(?:^|[,;:–—])\s*(?:(?:and|so|but|since|because)\s+)*$", re.IGNORECASE)
"""Text that ends where a new clause can begin."""


def _preference(sentence: str) -> str:
    """Return the lasting preference that the speaker states in *sentence*; empty if it states none, is another's, only
    for now, or asked for."""
    match = _LIKES_ANSWERS.match(sentence) or _PREFERS.search(sentence)
    if match is None or _QUOTED.match(sentence):
        return ""
    before, rest = sentence[: match.start()], sentence[match.start() :]
    if is_unsure(before) or _ANOTHERS.search(before) or _ONLY_NOW.search(before):
        return ""
    if is_question(sentence) and not (_CLAUSE_START.search(before) and _ADDED_CLAUSE.search(rest)):
        return ""
    clause = _ADDED_CLAUSE.sub("", rest).strip().rstrip(".!,;: ")
    if _REFERENCES.search(clause):
        clause = _PURPOSE.sub("", clause)
    if _REFERENCES.search(clause) or _ONLY_NOW.search(clause) or len(clause) > MAX_RULE_CHARACTERS:
        return ""
    return clause if len(terms(clause)) >= 2 else ""


# Contradictions

_VALUES = {
    "language": re.compile(
        r"\b(?:arabic|chinese|czech|danish|dutch|english|finnish|french|german|greek|hebrew|hindi|hungarian|italian|"
        r"japanese|korean|norwegian|polish|portuguese|romanian|russian|spanish|swedish|turkish|ukrainian|"
        r"deutsch\w*|englisch\w*|französisch\w*|spanisch\w*|italienisch\w*|allemand|anglais|français|espagnol|italien|"
        r"alemán|inglés|francés|español|italiano)\b",
        re.IGNORECASE,
    ),
    "length": re.compile(
        r"\b(?:short(?:er|ly)?|brief(?:ly)?|concise(?:ly)?|terse|long(?:er)?|lengthy|verbose|detailed|"
        r"in (?:more )?detail|"
        r"kurz\w*|knapp\w*|lang\w*|ausführlich\w*|detaillier\w*|courte?s?|bref|brève\w*|longue?s?|détaillée?s?|"
        r"cort[oa]s?|breves?|larg[oa]s?|detallad[oa]s?)\b",
        re.IGNORECASE,
    ),
    "unit": re.compile(
        r"\b(?:metric|imperial|metrisch\w*|métriques?|impériales?|métric[oa]s?|imperiales|celsius|fahrenheit|kelvin|"
        r"kilomet(?:er|re)s?|kilometern?|miles|meilen)\b",
        re.IGNORECASE,
    ),
    "tone": re.compile(
        r"\b(?:(?:in)?formal(?:ly)?|casual(?:ly)?|duze|sieze|tutoie|vouvoie|tutéame)\b",
        re.IGNORECASE,
    ),
    "name": re.compile(r"(?<=call me )\S+(?: \S+)?$", re.IGNORECASE),
    "number": re.compile(r"\b\d+\b"),
}
_FRAME = term_set(
    "en auf always never please only just stop don't not no use using keep keeping make give giving be say want like "
    "prefer would answer answers answering reply replies respond response responses speak talk write ask asking asks "
    "immer stets nie niemals bitte nur nutze benutze verwende bevorzuge möchte antworte antworten schreibe sprich "
    "frage "
    "toujours jamais utilise préfère veux réponds réponses parle écris demande "
    "siempre nunca usa usar prefiero quiero responde respuestas habla escribe pregunto pregunte"
)
"""Words that say that something is wanted, not what."""


def _kinds_and_words(rule: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return the kinds of values that *rule* names, and its content words without these values."""
    rest = _FROM_NOW.sub(" ", _COURTESY.sub("", rule))
    kinds = frozenset(kind for kind, pattern in _VALUES.items() if pattern.search(rest))
    for kind in kinds:
        rest = _VALUES[kind].sub(" ", rest)
    return kinds, term_set(rest) - _FRAME

"""The language of a text, by its function words: English, French, German or Spanish. Pure.

Words of one language say nothing about a text in another one, so that a search must know when they differ. Function
words are in every sentence, and counting them takes microseconds. A text of names, code or figures has no language, and
neither has one word alone.
"""

from __future__ import annotations

import re
import unicodedata
from typing import NamedTuple

LEAST_WORDS = 2
"""A text has a language if so many of its words are function words of that language."""
LONGEST_READ_CHARACTERS = 2000
"""The rest of a longer text is not read."""

_WORD = re.compile(r"[^\W\d_]+|[¿¡]")
_WORDS = {
    "english": """
        the a an of to in is are was were be been am and or but not no if then than that this these those there here it
        its he she they we you i me my your our their his her him them us who what which when where why how do does did
        has have had can could will would should shall may might must for from with without by at on as about into over
        under after before between during until while because so very much many more most some any each every all both
        get got long per""",
    "french": """
        le la les un une des du de au aux ce cet cette ces et ou mais donc car ni ne pas plus que qui quoi dont quand
        comment combien pourquoi quel quelle quels quelles je tu il elle on nous vous ils elles me te se lui leur mon ma
        mes ton ta tes son sa ses notre nos votre vos leurs est sont suis es sommes etes etait ai as avons avez ont a
        fait faire peut peux puis pouvons faut doit dois dans sur sous avec sans pour par chez entre vers depuis pendant
        avant apres jusqu si y en qu cela ca tout tous toute toutes aussi tres bien quelqu""",
    "german": """
        der die das den dem des ein eine einen einem einer eines kein keine keinen und oder aber nicht nur auch noch
        schon ist sind war waren bin bist sein seid wird werden wurde wurden hat haben habe hatte hatten kann koennen
        konnen darf duerfen durfen muss muessen mussen soll sollen will wollen moechte mochte ich du er sie es wir ihr
        mich dich sich uns euch mir dir ihm ihn ihnen mein meine meinen meiner dein unser unsere unseren wer was wann
        wo wie warum wieso welche welcher welches welchen welchem wieviel viel viele fuer fur mit von vom zu zum zur bei
        beim auf aus nach vor ueber uber unter zwischen ohne gegen bis ab seit an am im in um als wenn dass ob weil dann
        da hier dort so sehr man mal gibt bekomme bekommt bekommen""",
    "spanish": """
        el la los las un una unos unas de del al y e o u pero no ni que quien quienes cual cuales cuando cuanto cuanta
        cuantos cuantas como donde porque por para con sin sobre entre desde hasta hacia segun es son era eran soy eres
        somos esta estan este esto estos estas ese esa eso hay ha han he has hemos tiene tienen tengo tenemos tienes
        puede pueden puedo podemos debe deben debo hace hago hacer se me te le les nos lo mi mis tu tus su sus nuestro
        nuestra nuestros nuestras yo ella ellos ellas nosotros usted ustedes si ya muy mas menos tambien todo todos toda
        todas cada en a ¿ ¡""",
}
_LANGUAGES = {
    word: frozenset(language for language, words in _WORDS.items() if word in words.split())
    for words in _WORDS.values()
    for word in words.split()
}
"""The languages of each function word."""


class QueryTranslation(NamedTuple):
    """A question as it is searched for in documents of another language: ``text``; or, if it could not be translated,
    the reason ``why``, in a word."""

    text: str = ""
    why: str = ""


UNTRANSLATED = QueryTranslation()
"""A question that is searched for as it is."""


def language_of(text: str) -> str:
    """Return the language of *text* in small letters, as cue sets are named; empty if its words do not tell."""
    counts = dict.fromkeys(_WORDS, 0)
    plain = unicodedata.normalize("NFKD", text[:LONGEST_READ_CHARACTERS].lower())
    for word in _WORD.findall("".join(letter for letter in plain if not unicodedata.combining(letter))):
        for language in _LANGUAGES.get(word, ()):
            counts[language] += 1
    (first, most), (_, second), *_ = sorted(counts.items(), key=lambda item: -item[1])
    return first if most >= LEAST_WORDS and most > second else ""

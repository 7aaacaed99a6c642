"""A model for English is given no text of other languages."""

from __future__ import annotations

import pytest

from grounding.retrieval.minilm import is_english, load_tokenizer

TOKENIZER = load_tokenizer()


def is_read(text: str) -> bool:
    return is_english(text, TOKENIZER.encode(text).tokens[1:-1])


@pytest.mark.parametrize(
    "text",
    [
        "And what about the window?",
        "parking for visitors",
        "How do I rotate the kubernetes ingress certs?",
        "Returns are possible within thirty days of purchase, as long as the item is unused and the receipt is there.",
        "Wolfgang Amadeus Mozart was born in Salzburg and died in Vienna, where he had moved with Constanze Weber.",
    ],
)
def test_english_is_read(text: str) -> None:
    assert is_read(text)


@pytest.mark.parametrize(
    "text",
    [
        "Wie lange habe ich Zeit, um einen Artikel zurückzugeben?",
        "Die Kündigungsfrist beträgt drei Monate zum Quartalsende.",
        "Combien de temps ai-je pour retourner un article ?",
        "Les retours sont possibles dans les trente jours suivant l'achat, à condition que l'article soit inutilisé.",
        "¿Quién aprueba los gastos de viaje?",
        "Entro quanti giorni posso restituire un articolo?",
        "出張費は誰が承認しますか？",
        "退货政策",
        "Кто утверждает командировочные расходы?",
        "zq2500x",
        "",
    ],
)
def test_other_languages_and_codes_alone_are_not(text: str) -> None:
    assert not is_read(text)

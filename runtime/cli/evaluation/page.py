"""The page that ``eval retrieval --report`` writes: one file, which loads nothing and runs nothing. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from grounding.documents.evaluate import ALONE, BM25, DENSE, FUSED, QUICK, RERANKED, RRF
from grounding.documents.metrics import Difference, Ranking, percentile, recall_at, recall_within
from grounding.documents.question_set import Question
from runtime.cli.evaluation.charts import (
    Line,
    even_axis,
    line_chart,
    logarithmic_axis,
    shares_axis,
    steps,
    table,
    text,
)
from runtime.cli.evaluation.result import TITLES, Comparison, Result, differences

KS = range(1, 51)
SHOWN_KS = (1, 3, 5, 10, 20, 50)
TOKENS = range(0, 1501, 50)
SHOWN_TOKENS = (100, 250, 500, 1000, 1500)
WORST = 20
EXCERPT_CHARACTERS = 240
LATENCY_POINTS = 100
MEANING = (
    "recall@k: the share of the expected documents among the first k, each where its best passage stands. "
    "nDCG@10 and MRR also say how far up. recall@1000tok: what is found from the top until the next document would "
    "pass 1,000 tokens (characters / 4 + 1), and the same of passages, which is what a prompt pays for."
)
ARMS = {
    BM25: "words alone",
    DENSE: "the embedding model alone",
    RRF: "both of these by their ranks, for reference",
    ALONE: "as fused, of the question as it stands, without what was said before it",
    QUICK: "as fused, without the second look: no deeper model",
    FUSED: "what turns do: words and meaning by their scores, after what was said before",
    RERANKED: "as fused, the first of it put in order by the reranker",
}
SECOND_LOOK = ", and the best looked at again by the deeper model"
MARGIN = (
    "± is half the 95 % interval of a paired t-test. Within it a difference is noise; of so many figures one in twenty "
    "passes it by chance."
)
NOT_FOUND = "not among the first 50"

STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1a1a1a; --dim: #595959; --rule: #d8d8d8; --soft: #f5f5f5;
  --line-0: #0060a8; --line-1: #b34700; --line-2: #00705a; --line-3: #8a2c7e; --line-4: #6b6100; --line-5: #444; }
@media (prefers-color-scheme: dark) { :root { --page: #16181b; --ink: #ececec; --dim: #a9adb3; --rule: #3a3e44;
  --soft: #202327; --line-0: #6db8ff; --line-1: #ff9d5c; --line-2: #4fd1b0; --line-3: #e394d8; --line-4: #d9c94a;
  --line-5: #c4c4c4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 70rem; background: var(--page); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p { max-width: 45rem; margin: .5rem 0; }
.dim, caption { color: var(--dim); }
.arms { padding-left: 1.2rem; margin: .5rem 0 1rem; }
.pair { display: grid; gap: 1rem 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr));
  align-items: start; }
figure { margin: 0; }
figure > svg { display: block; width: 100%; height: auto; }
svg text { font: 14px system-ui, sans-serif; fill: var(--dim); }
.grid { stroke: var(--rule); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.line-0 { stroke: var(--line-0); stroke-width: 3; }
.line-1 { stroke: var(--line-1); } .line-2 { stroke: var(--line-2); }
.line-3 { stroke: var(--line-3); } .line-4 { stroke: var(--line-4); } .line-5 { stroke: var(--line-5); }
.legend { display: flex; flex-wrap: wrap; gap: .25rem 1rem; list-style: none; margin: .25rem 0 0; padding: 0;
  font-size: .9rem; }
.legend svg { width: 30px; height: 8px; margin-right: .4rem; vertical-align: middle; }
.wide { overflow-x: auto; }
.wide + .wide { margin-top: 1rem; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .25rem; }
th, td { padding: .25rem .6rem; text-align: right; border-bottom: 1px solid var(--rule); white-space: nowrap; }
tr > :first-child { text-align: left; padding-left: 0; position: sticky; left: 0; background: var(--page); }
@media (max-width: 30rem) { th, td { padding: .25rem .35rem; } }
details { border-bottom: 1px solid var(--rule); padding: .5rem 0; }
summary { cursor: pointer; overflow-wrap: anywhere; }
details ol, details ul { margin: .25rem 0 .75rem; padding-left: 1.5rem; overflow-wrap: anywhere; }
details h3 { font-size: .95rem; margin: .5rem 0 0; }
"""


def page(result: Result, comparison: Comparison | None = None) -> str:
    """The whole page for *result*, with what changed since an earlier one where that is given."""
    title = f"Retrieval on {result.name}"
    parts = [_head(result, title), _means(result)]
    if comparison is not None:
        parts.append(_compared(comparison))
    parts += [_recall_at_k(result), _recall_by_tokens(result), _latency(result), _worst(result)]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{text(title)}</title><style>{STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )


def _head(result: Result, title: str) -> str:
    evaluation = result.evaluation
    said = [
        f"{len(result.questions.known):,} documents in {evaluation.chunks:,} passages, "
        f"{len(result.questions.questions):,} questions. Turns search as the arm “{evaluation.main}” does."
    ]
    for (what, why), times in evaluation.lost.items():
        said.append(f"{what} failed for {times:,} questions ({why}): there the fused order stands.")
    if absent := len(result.questions.absent):
        said.append(f"The corpus lacks {absent:,} expected documents, which nothing can find.")
    return f"<h1>{text(title)}</h1>" + "".join(f"<p>{text(one)}</p>" for one in said)


def _means(result: Result) -> str:
    fields = list(TITLES)
    rows = []
    for arm, scores in result.scores.items():
        times = [_ms(scores.p50_ms), _ms(scores.p95_ms)]
        rows.append([arm, *(f"{getattr(scores, field):.3f}" for field in fields), *times])
    said = {arm: ARMS[arm] + (SECOND_LOOK if arm == FUSED and QUICK in result.scores else "") for arm in result.scores}
    items = "".join(f"<li><b>{text(arm)}</b>: {text(what)}</li>" for arm, what in said.items())
    arms = f'<ul class="dim arms">{items}</ul>'
    means = table("Means over all questions", ["arm", *TITLES.values(), "p50 ms", "p95 ms"], rows)
    main = result.evaluation.main
    against = ""
    if len(result.questions.questions) > 1:
        changes = {
            arm: differences(result.figures[main], figures) for arm, figures in result.figures.items() if arm != main
        }
        against = _change_table(f"{main} minus each other arm, question by question", changes)
    return f"<h2>Figures</h2><p class=dim>{MEANING}</p>{arms}{means}{against}"


def _compared(comparison: Comparison) -> str:
    caption = f"This run minus {comparison.name}, over {comparison.questions:,} questions"
    return f"<h2>Since the earlier run</h2>{_change_table(caption, comparison.arms)}"


def _change_table(caption: str, changes: Mapping[str, Mapping[str, Difference]]) -> str:
    rows = [[title, *(_change(by_field[field]) for by_field in changes.values())] for field, title in TITLES.items()]
    return f'{table(caption, ["figure", *changes], rows)}<p class="dim">{MARGIN}</p>'


def _change(difference: Difference) -> str:
    if not difference.mean and not difference.margin:
        return "same"
    verdict = difference.verdict.removeprefix("within ")
    return f"{difference.mean:+.3f} ± {difference.margin:.3f} {verdict}"


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"


def _by_arm(result: Result) -> list[tuple[int, str, list[Ranking]]]:
    """Each arm with the number of its colour: that which turns use has the first."""
    arms = result.evaluation.arms
    others = [arm for arm in arms if arm != result.evaluation.main]
    return [(0 if arm not in others else 1 + others.index(arm), arm, list(arms[arm].values())) for arm in arms]


def _recall_at_k(result: Result) -> str:
    lines = []
    for at, arm, rankings in _by_arm(result):
        found = [(ranking.found, ranking.gold) for ranking in rankings]
        lines.append(Line(arm, [(k, fmean(recall_at(one, gold, k) for one, gold in found)) for k in KS], at))
    rows = [[line.name, *(f"{line.points[k - 1][1]:.3f}" for k in SHOWN_KS)] for line in lines]
    across = even_axis("documents looked at", KS[-1], 10)
    chart = line_chart(
        "recall-k",
        "Recall by the number of documents",
        f"The share of the expected documents among the first 1 to 50. {_spoken(rows, 'the first 50 hold')}",
        across,
        shares_axis("recall", _highest(lines)),
        lines,
    )
    return _section("Recall by documents", chart, table("recall@k", ["arm", *map(str, SHOWN_KS)], rows))


def _recall_by_tokens(result: Result) -> str:
    lines = []
    for at, arm, rankings in _by_arm(result):
        points = [
            (tokens, fmean(recall_within(one.passages, one.gold, tokens) for one in rankings)) for tokens in TOKENS
        ]
        lines.append(Line(arm, points, at))
    rows = [[line.name, *(f"{dict(line.points)[tokens]:.3f}" for tokens in SHOWN_TOKENS)] for line in lines]
    chart = line_chart(
        "recall-tokens",
        "Recall by tokens",
        "The share of the expected documents of which a passage fits into so many tokens. "
        + _spoken(rows, f"{TOKENS[-1]:,} tokens hold"),
        even_axis("tokens of passages", TOKENS[-1], 250),
        shares_axis("recall", _highest(lines)),
        lines,
    )
    headers = ["arm", *(f"{tokens:,}" for tokens in SHOWN_TOKENS)]
    return _section("Recall by tokens", chart, table("recall within tokens of passages", headers, rows))


def _latency(result: Result) -> str:
    lines, rows = [], []
    for at, arm, rankings in _by_arm(result):
        took = sorted(ranking.latency_ms for ranking in rankings if ranking.latency_ms is not None)
        if not took:
            continue
        shares = [n / LATENCY_POINTS for n in range(1, LATENCY_POINTS + 1)]
        lines.append(Line(arm, steps([(percentile(took, share), share) for share in shares]), at))
        rows.append([arm, *(f"{percentile(took, share):.1f}" for share in (0.5, 0.9, 0.95, 0.99, 1.0))])
    if not lines:
        return ""
    fastest = min(line.points[0][0] for line in lines)
    slowest = max(line.points[-1][0] for line in lines)
    chart = line_chart(
        "latency",
        "How long searches took",
        "The share of the questions that were answered within so many milliseconds.",
        logarithmic_axis("milliseconds (logarithmic)", max(fastest, 0.001), slowest),
        shares_axis("share of questions", 1.0),
        lines,
    )
    figures = table("milliseconds", ["arm", "p50", "p90", "p95", "p99", "most"], rows)
    return _section("Latency, the embedding of the question included", chart, figures)


def _section(title: str, chart: str, figures: str) -> str:
    return f'<h2>{text(title)}</h2><div class="pair"><figure>{chart}</figure>{figures}</div>'


def _highest(lines: Sequence[Line]) -> float:
    return max((y for line in lines for _, y in line.points), default=1.0)


def _spoken(rows: Sequence[Sequence[str]], what: str) -> str:
    return f"In the end {what}: " + ", ".join(f"{row[0]} {row[-1]}" for row in rows) + "."


def _worst(result: Result) -> str:
    arm = result.evaluation.main
    figures = result.figures[arm]
    asked = sorted(
        result.questions.questions,
        key=lambda one: (figures[one.id].recall_at_10, figures[one.id].ndcg_at_10, one.id),
    )
    worst = [one for one in asked[:WORST] if figures[one.id].ndcg_at_10 < 1]
    if not worst:
        return "<h2>The worst questions</h2><p>Every expected document comes first.</p>"
    said = f"By recall@10, then nDCG@10, of the arm “{arm}”: what should have been found, and what came instead."
    return (
        f"<h2>The worst questions</h2><p class=dim>{text(said)}</p>{''.join(_question(result, one) for one in worst)}"
    )


def _question(result: Result, question: Question) -> str:
    found = result.evaluation.arms[result.evaluation.main][question.id].found
    labels = {one.id: one.label for one in result.questions.known.values() if one.id in question.expected}
    expected = "".join(
        f"<li>{_named(document, labels.get(document, 'not in the corpus'))} "
        f'<span class="dim">{text(_place(found, document))}</span></li>'
        for document in sorted(question.expected, key=lambda one: (_rank(found, one), one))
    )
    instead = "".join(
        f"<li>{_named(result.questions.known[hit.passage.source].id, hit.passage.heading)}: "
        f"<bdi>{text(_excerpt(hit.passage.text))}</bdi></li>"
        for hit in result.evaluation.first.get(question.id, ())
    )
    recall = result.figures[result.evaluation.main][question.id].recall_at_10
    return (
        f"<details><summary><bdi>{text(_excerpt(question.text))}</bdi> <span class=dim>recall@10 {recall:.2f}</span>"
        f"</summary><h3>Expected</h3><ul>{expected}</ul><h3>Found first</h3>"
        f"{f'<ol>{instead}</ol>' if instead else '<p>nothing</p>'}</details>"
    )


def _named(document: str, label: str) -> str:
    return f"<b><bdi>{text(document)}</bdi></b>" + (f" <bdi>{text(label)}</bdi>" if label else "")


def _rank(found: Sequence[str], document: str) -> int:
    return found.index(document) if document in found else len(found)


def _place(found: Sequence[str], document: str) -> str:
    return f"at {found.index(document) + 1}" if document in found else NOT_FOUND


def _excerpt(words: str) -> str:
    flat = " ".join(words[: 2 * EXCERPT_CHARACTERS].split())
    return flat if len(flat) <= EXCERPT_CHARACTERS else flat[: EXCERPT_CHARACTERS - 1].rstrip() + "…"

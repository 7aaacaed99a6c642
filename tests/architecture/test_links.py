"""Links between the pages lead somewhere: to a file, and to a heading where they name one."""

import re
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, made as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def leads_nowhere(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return not target.exists() or bool(anchor and target.suffix == ".md" and anchor not in anchors(target))


def test_every_link_of_the_pages_leads_somewhere() -> None:
    links = [
        (page, link)
        for page in PAGES
        for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))
        if not re.match(r"[a-z]+:", link)
    ]
    wrong = [f"{page.relative_to(ROOT)}: {link}" for page, link in links if leads_nowhere(page, link)]
    assert wrong == []
    assert len(links) > 100

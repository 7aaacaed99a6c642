"""Write docs/settings.md, one Markdown table a topic, from the settings' declarations. Run ``python -m
config.reference``."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from pathlib import Path

from pydantic_core import PydanticUndefined

from config.settings import GROUNDING_NUMBERS, SECRETS, TOPICS, Settings

HEAD = """# Settings

Each setting is an environment variable `AGENT_RUNTIME_…` or, in the file that `--config` or `AGENT_RUNTIME_CONFIG`
names (else `agent-runtime.toml` in the working directory), the same name in lower case without the prefix. The
environment wins over the file, the file over the defaults; an empty or blank value unsets. Lists are comma-separated.
All mistakes are reported together, each with its name, value (masked if secret) and what was expected; exit code 2.
Only the numbers marked ¹ fall back to their default instead, with a warning.
"""
TABLE_HEAD = """
| `AGENT_RUNTIME_…` | default | meaning |
|---|---|---|
"""


def markdown() -> str:
    """Return the whole page of settings as Markdown."""
    return HEAD + "".join(_section(topic) for topic in TOPICS)


def setting_descriptions(topic: type) -> dict[str, str]:
    """Return what each setting of *topic* means: the string below its declaration, on one line."""
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(topic))).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for field, follower in itertools.pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            constant = follower.value if isinstance(follower, ast.Expr) else None
            text = constant.value if isinstance(constant, ast.Constant) else ""
            texts[field.target.id] = " ".join(str(text).split())
    return texts


def _section(topic: type) -> str:
    title, _, rest = (topic.__doc__ or "").removesuffix(".").partition(". ")
    introduction = f"\n{rest}.\n" if rest else ""
    rows = (_row(name, text) for name, text in setting_descriptions(topic).items())
    return f"\n## {title}\n{introduction}{TABLE_HEAD}{''.join(rows)}"


def _row(name: str, text: str) -> str:
    default = Settings.model_fields[name].default
    if default is None or default is PydanticUndefined or default in ((), {}):
        shown = ""
    elif isinstance(default, Path):
        shown = f"`./{default}`"
    else:
        shown = f"`{default}`"
    mark = "¹" if name in GROUNDING_NUMBERS else ""
    secret = " Secret." if name in SECRETS else ""
    escaped = text.replace("|", "\\|")
    return f"| `{name.upper()}`{mark} | {shown} | {escaped}{secret} |\n"


if __name__ == "__main__":
    print(markdown(), end="")  # noqa: T201 - this is the command's output

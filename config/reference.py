"""Write docs/settings.md, a Markdown table, from the settings' declarations. Run ``python -m config.reference``."""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from pathlib import Path

from pydantic_core import PydanticUndefined

from config.settings import GROUNDING_NUMBERS, SECRETS, Settings

HEAD = """# Settings

Each setting is an environment variable `AGENT_RUNTIME_…` or, in the file that `--config` or `AGENT_RUNTIME_CONFIG`
names (else `agent-runtime.toml` in the working directory), the same name in lower case without the prefix. The
environment wins over the file, the file over the defaults; an empty or blank value unsets. Lists are comma-separated.
All mistakes are reported together, each with its name, value (masked if secret) and what was expected; exit code 2.
Only the numbers marked ¹ fall back to their default instead, with a warning.

| `AGENT_RUNTIME_…` | default | meaning |
|---|---|---|
"""


def markdown() -> str:
    """Return the whole page of settings as Markdown."""
    return HEAD + "".join(_row(name, text) for name, text in setting_descriptions().items())


def setting_descriptions() -> dict[str, str]:
    """Return what each setting means, in the order of the fields: the string below its declaration, on one line."""
    texts: dict[str, str] = {}
    for topic in Settings.__bases__:
        texts |= _texts_of(topic)
    return {name: texts.get(name, "") for name in Settings.model_fields}


def _texts_of(topic: type) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(inspect.getsource(topic))).body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for field, follower in itertools.pairwise(definition.body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            constant = follower.value if isinstance(follower, ast.Expr) else None
            text = constant.value if isinstance(constant, ast.Constant) else ""
            texts[field.target.id] = " ".join(str(text).split())
    return texts


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

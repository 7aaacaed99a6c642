"""What the model that is none answers, for people who try the bot."""

from __future__ import annotations

from typing import Any

from tests.emulators.openai import echo

EVERYTHING = """\
# A heading

**Bold**, *emphasis*, ~~struck~~, `code` and a [link](https://example.org/page?a=1&b=2).

> A quotation,
> of two lines.

1. first
2. second
   - with a point below

| Plan | Price |
|---|---:|
| Quay | 119 € |
| Harbour | 490 € |

```python
print("a block of code")
```

@everyone is nobody's name here. """


def in_short(body: dict[str, Any]) -> str:
    """An echo; of ``show me everything`` every kind of formatting, of ``tell me a lot`` more than fits one message."""
    asked = [str(message.get("content")) for message in body["messages"] if message["role"] == "user"]
    said = asked[-1].rpartition("\n\n")[2] if asked else ""
    if "show me everything" in said:
        return EVERYTHING
    if "tell me a lot" in said:
        return "\n\n".join(f"Paragraph {number}. " + "There is much to be told. " * 12 for number in range(1, 9))
    return echo({"messages": [{"role": "user", "content": said}]})

"""Has the model shorten directives, and publishes its text after a person agreed.

The workspace from which this is asked for pays for the call.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from config.settings import Settings
from connectors.message import Scope
from grounding.prompt_input import Tokens
from promptpolicy import condense
from promptpolicy.condense import CondensedDraft, NotCondensed
from promptpolicy.directives import NoSuchVersion, Version
from promptpolicy.file_sync import FileSyncPublisher
from promptpolicy.policy import Slot
from promptpolicy.publishing import VersionMoved
from runtime.billing import Spending
from runtime.llm import NEEDS_MODEL, Model, ModelFailed

ATTEMPTS = 2
"""In the second attempt the model is told what was wrong with its first text."""
SPARE_SECONDS = 15.0
"""All attempts together may take this long beyond LLM_TIMEOUT_SECONDS."""
_PURPOSE = "condense"
_log = structlog.get_logger()


class NoModelAnswer(NotCondensed):
    """The model gave no answer."""

    retryable = True


@dataclass(frozen=True, slots=True)
class Proposal:
    """A shorter text for version ``version`` of a directive."""

    slot: Slot
    version: int
    text: str
    diff: str
    tokens_before: int
    tokens_after: int
    model: str


class DirectiveCondenser:
    """Proposes and publishes shorter directives. Every method raises `connectors.message.StoreUnavailable`."""

    def __init__(
        self, settings: Settings, publisher: FileSyncPublisher, model: Model, spending: Spending, tokens: Tokens
    ) -> None:
        self._timeout = settings.llm_timeout_seconds + SPARE_SECONDS
        self._max_output_tokens = settings.llm_max_output_tokens
        self._publisher = publisher
        self._model = model
        self._spending = spending
        self._tokens = tokens

    async def propose(self, scope: Scope, slot: Slot) -> Proposal:
        """Return a shorter text for *slot*; the workspace of *scope* pays.

        Raises `NotCondensed`, `NoSuchVersion`, `promptpolicy.policy.InvalidDirective` and
        `runtime.billing.BudgetExceeded`.
        """
        condense.check_kind(slot)
        current = await self._publisher.directives.latest(slot)
        if current is None or current.text is None:
            raise NoSuchVersion(f"there is no {slot.label}")
        try:
            async with asyncio.timeout(self._timeout):
                judged, model = await self._shorten(scope, current.text)
        except TimeoutError:
            raise NoModelAnswer(f"the model took longer than {self._timeout:g} s") from None
        before, after = [await asyncio.to_thread(self._tokens.count, text) for text in (current.text, judged.text)]
        _log.info(
            "directive.condensed",
            scope=slot.place.level.value,
            kind=slot.kind.value,
            accepted=not judged.problems,
            tokens_before=before,
            tokens_after=after,
            **slot.place.ids,
        )
        if judged.problems:
            raise NotCondensed(f"the model's text was rejected: {'; '.join(judged.problems)}")
        diff = condense.difference(current.text, judged.text, f"{slot.label} version {current.version}")
        return Proposal(slot, current.version, judged.text, diff, before, after, model)

    async def publish(self, slot: Slot, text: str, expected_version: int, author: str) -> Version:
        """Check *text* again, and publish it in place of version *expected_version*.

        Raises `NotCondensed`, and what `promptpolicy.publishing.Publisher.publish` raises.
        """
        condense.check_kind(slot)
        current = await self._publisher.directives.latest(slot)
        if current is None or current.text is None or current.version != expected_version:
            raise VersionMoved(slot, expected_version, current, text)
        judged = await asyncio.to_thread(condense.judge, current.text, text, self._tokens.count)
        if judged.problems:
            raise NotCondensed(f"the text was rejected: {'; '.join(judged.problems)}")
        return await self._publisher.publish(
            slot, judged.text, author=author, origin="api", expected_version=expected_version
        )

    async def _shorten(self, scope: Scope, text: str) -> tuple[CondensedDraft, str]:
        """Return the model's last text, judged, and the model's name."""
        messages = condense.condense_messages(text)
        most = max(self._max_output_tokens, 2 * await asyncio.to_thread(self._tokens.count, text))
        for _ in range(ATTEMPTS):
            answer, is_cut, model = await self._ask_model(scope, messages, most)
            judged = await asyncio.to_thread(condense.judge, text, answer, self._tokens.count)
            if is_cut:
                judged = CondensedDraft(judged.text, ("it is cut off", *judged.problems))
            if not judged.problems:
                break
            messages = condense.retry_messages(messages, answer, judged.problems)
        return judged, model

    async def _ask_model(self, scope: Scope, messages: list[dict[str, str]], most: int) -> tuple[str, bool, str]:
        """Return the model's text, whether it is cut off, and the model's name."""
        try:
            completion = await self._spending.ask(scope, _PURPOSE, messages, output_tokens=most)
        except ModelFailed as error:
            why = NEEDS_MODEL if error.why == "no_model" else f"the model did not answer ({error.why})"
            raise NoModelAnswer(why) from None
        return completion.text, completion.finish_reason == "length", completion.model

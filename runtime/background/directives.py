"""Has the model make directives shorter, and publishes its text once a person says so.

The call is background work: it is held and counted in the budget of the workspace from which it was asked for.
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
"""The second time the model is told what was wrong with its first text."""
SPARE_SECONDS = 15.0
"""Beyond LLM_TIMEOUT_SECONDS: whoever asks waits no longer for all attempts together than for one call and these."""
_PURPOSE = "condense"
_log = structlog.get_logger()


class ModelSilent(NotCondensed):
    """The model gave no answer."""

    retryable = True


@dataclass(frozen=True, slots=True)
class Proposal:
    """A shorter text for version ``version`` of a directive. ``notes`` are what a person should look at."""

    slot: Slot
    version: int
    text: str
    diff: str
    tokens_before: int
    tokens_after: int
    notes: tuple[str, ...]
    model: str


class Condensing:
    """Proposes and publishes. Raises `connectors.message.StoreUnavailable` throughout."""

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
        """A shorter text for *slot*, paid for by the workspace of *scope*. Raises `NotCondensed`, `NoSuchVersion`,
        `promptpolicy.policy.InvalidDirective` and `runtime.billing.budgets.BudgetExceeded`."""
        condense.check_kind(slot)
        current = await self._publisher.directives.latest(slot)
        if current is None or current.text is None:
            raise NoSuchVersion(f"there is no {slot.label}")
        try:
            async with asyncio.timeout(self._timeout):
                judged, model = await self._shorter(scope, current.text)
        except TimeoutError:
            raise ModelSilent(f"the model took longer than {self._timeout:g} s") from None
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
        return Proposal(slot, current.version, judged.text, diff, before, after, judged.notes, model)

    async def publish(self, slot: Slot, text: str, expected_version: int, author: str) -> Version:
        """Publish *text*, which is checked again, in place of the version that it was made of. Raises as
        `promptpolicy.publishing.Publisher.publish` and `NotCondensed`."""
        condense.check_kind(slot)
        current = await self._publisher.directives.latest(slot)
        if current is None or current.text is None or current.version != expected_version:
            raise VersionMoved(slot, expected_version, current.version if current else 0)
        judged = await asyncio.to_thread(condense.judge, current.text, text, self._tokens.count)
        if judged.problems:
            raise NotCondensed(f"the text was rejected: {'; '.join(judged.problems)}")
        return await self._publisher.publish(
            slot, judged.text, author=author, origin="api", expected_version=expected_version
        )

    async def _shorter(self, scope: Scope, text: str) -> tuple[CondensedDraft, str]:
        """What the model makes of *text* in the end, and which model it was."""
        asked = condense.condense_messages(text)
        most = max(self._max_output_tokens, 2 * await asyncio.to_thread(self._tokens.count, text))
        for _ in range(ATTEMPTS):
            answer, is_cut, model = await self._asked(scope, asked, most)
            judged = await asyncio.to_thread(condense.judge, text, answer, self._tokens.count)
            if is_cut:
                judged = CondensedDraft(judged.text, ("it is cut off", *judged.problems), judged.notes)
            if not judged.problems:
                break
            asked = condense.retry_messages(asked, answer, judged.problems)
        return judged, model

    async def _asked(self, scope: Scope, messages: list[dict[str, str]], most: int) -> tuple[str, bool, str]:
        """The model's words, whether they are cut off, and which model it was."""
        try:
            completion = await self._spending.ask(scope, _PURPOSE, messages, output_tokens=most)
        except ModelFailed as error:
            why = NEEDS_MODEL if error.why == "no_model" else f"the model did not answer ({error.why})"
            raise ModelSilent(why) from None
        return completion.text, completion.finish_reason == "length", completion.model

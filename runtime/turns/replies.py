"""The replies of a turn: the model's answer, or an apology that says why there is none. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from config.settings import EXTRACTIVE
from connectors.message import INTERNAL_ERROR, AgentRuntimeError, Degraded, OutboundMessage, Role, Source
from grounding.prompt import CheckedReply, ContextTooLarge, check_citations, passage_label
from grounding.prompt_input import Censor, Passage
from runtime.attachments import AttachmentContents
from runtime.billing import BudgetExceeded
from runtime.llm import Completion, ModelFailed, replace_surrogates
from runtime.turns import censors
from runtime.turns.batch import Batch
from runtime.turns.rounds import Round, merge_completions, total_usage
from runtime.turns.turn_state import BuiltPrompt

QUOTED = "I can only quote what the documents and my memory say:"

BUDGET_EXCEEDED = "budget_exceeded"
STOPPED = "stopped"
"""The finish reason of an answer that people stopped."""
STOPPED_TEXT = "_Stopped._"
"""The recorded text of an answer that was stopped before its first word."""


def draft(batch: Batch) -> OutboundMessage:
    """Return the reply to *batch* without its text."""
    return OutboundMessage(
        key=batch.key,
        turn_id=batch.turn_id,
        text="",
        answers=answered_ids(batch),
        superseded=superseded(batch),
        reply_to=reply_to(batch),
    )


def cut_short(text: str, model: str, *, asked: bool = True) -> Completion:
    """Return *text*, the part of an answer that was written before it was stopped, as a completion without its cost.
    *asked* says whether a model was being asked: then that is an attempt."""
    text = replace_surrogates(text).strip()
    return Completion(
        text=f"{text} …" if text else STOPPED_TEXT, model=model, finish_reason=STOPPED, attempts=int(asked)
    )


def stopped(reply: OutboundMessage) -> OutboundMessage:
    """Return *reply*, marked as stopped. It is silent if no word was written: the answer to ``/stop`` says enough."""
    return replace(reply, silent=reply.text == STOPPED_TEXT, stopped=True)


def answer(batch: Batch, built: BuiltPrompt, completion: Completion, rounds: Sequence[Round] = ()) -> OutboundMessage:
    """Return the model's answer to *batch*: the texts of *rounds* and *completion*, or a notice if a censor stops it.

    Its sources are the passages that it cites. If it cites none, they are all passages that the model was given; but
    `EXTRACTIVE` cites all that it uses.
    """
    whole = merge_completions(rounds, completion)
    censor = censors.blocking_censor(built.context.censors, whole.text)
    if censor is not None:
        return _censored(batch, built, whole, censor)
    checked = checked_answer(whole, built, rounds)
    used = checked.cited if whole.model == EXTRACTIVE else checked.cited or available_passages(built, rounds)
    attached = _attached(built)
    return replace(
        draft(batch),
        text=checked.text,
        strategy=built.context.strategy,
        reason=built.context.reason,
        sources=_sources(built, [passage for passage in used if passage not in attached]),
        shows_sources=batch.envelopes[-1].shows_sources,
        degraded=_degraded(built),
        usage=whole.usage,
    )


def _censored(batch: Batch, built: BuiltPrompt, completion: Completion, censor: Censor) -> OutboundMessage:
    """Return the notice that replaces an answer which *censor* stops."""
    return replace(
        draft(batch),
        text=f"I stopped my answer, because it goes against a rule that holds here: {censors.rule_and_reason(censor)}.",
        kind="apology",
        error_code=censors.CENSORED,
        strategy=built.context.strategy,
        reason=built.context.reason,
        degraded=_degraded(built),
        usage=completion.usage,
    )


def apology(
    batch: Batch,
    built: BuiltPrompt,
    error: ModelFailed,
    quotation: str = "",
    rounds: Sequence[Round] = (),
) -> OutboundMessage:
    """Return the apology for a model that failed: why, for admins what to do about it, and the *quotation* that answers
    instead, unless a censor stops it. *rounds* were paid for before."""
    is_admin = batch.envelopes[-1].role is Role.ADMIN
    text = (error.admin_text if is_admin else "") or error.user_text
    used: tuple[Passage, ...] = ()
    if quotation and not _is_stopped(built, quotation):
        checked = checked_answer(Completion(quotation, EXTRACTIVE), built, rounds)
        text, used = f"{text} {QUOTED}\n\n{checked.text}", checked.cited
    return replace(
        draft(batch),
        text=text,
        kind="apology",
        error_code=f"model_{error.why}",
        strategy=built.context.strategy,
        reason=built.context.reason,
        sources=_sources(built, used),
        degraded=(Degraded("model", error.why), *_degraded(built)),
        usage=total_usage(past.completion.usage for past in rounds),
    )


def too_large(batch: Batch, error: ContextTooLarge, rounds: Sequence[Round] = ()) -> OutboundMessage:
    """Return the apology for a prompt that does not fit the model's window. *rounds* were paid for before."""
    mark = batch.envelopes[-1].message.command_mark
    return replace(
        draft(batch),
        text=error.user_text.replace("`/", f"`{mark}"),  # commands as people write them on this platform
        kind="apology",
        error_code="context_too_large",
        usage=total_usage(past.completion.usage for past in rounds),
    )


def voice_apology(batch: Batch, contents: AttachmentContents) -> OutboundMessage:
    """Return the apology for voice messages that could not be transcribed, if there was no other text."""
    return replace(
        draft(batch),
        text=contents.unheard,
        kind="apology",
        degraded=tuple(Degraded(part.block, part.why) for part in contents.degraded),
        error_code="voice_unheard",
    )


def budget_notice(batch: Batch, error: BudgetExceeded, rounds: Sequence[Round] = ()) -> OutboundMessage:
    """Return the notice that a budget leaves nothing for a model call. *rounds* were paid for before."""
    return replace(
        draft(batch),
        text=error.user_text,
        kind="apology",
        error_code=BUDGET_EXCEEDED,
        usage=total_usage(past.completion.usage for past in rounds),
    )


def unexpected_error(batch: Batch) -> OutboundMessage:
    """Return the apology for a turn that failed by an unexpected error."""
    return replace(
        draft(batch),
        text=AgentRuntimeError.user_text,
        kind="apology",
        error_code=INTERNAL_ERROR,
    )


def checked_answer(completion: Completion, built: BuiltPrompt, rounds: Sequence[Round] = ()) -> CheckedReply:
    """Return the answer with its citations checked against the passages in the prompt and in tool results."""
    results = [result.text for past in rounds for result in past.results]
    citable = (*available_passages(built, rounds), *_material(built), *_attached(built))
    return check_citations(completion.text, citable, "\n".join([built.prompt.user, *results]))


def _material(built: BuiltPrompt) -> tuple[Passage, ...]:
    """Return the codex files that stand whole in the prompt, which a reply may cite."""
    material = built.context.codex
    files = material.files if material is not None else ()
    return tuple(Passage(source=file.path, heading="", text=file.text, score=0.0) for file in files)


def _attached(built: BuiltPrompt) -> tuple[Passage, ...]:
    """Return the message's own attached files that have text. A reply may cite them, but they are not listed as its
    sources: people sent them themselves."""
    files = built.context.query.files
    return tuple(Passage(source=file.name, heading="", text="", score=0.0) for file in files if file.text)


def available_passages(built: BuiltPrompt, rounds: Sequence[Round] = ()) -> tuple[Passage, ...]:
    """Return the passages that stand in the prompt, in its order, and then those that tools found."""
    retrieved = built.prompt.block("retrieved")
    text = retrieved.text if retrieved is not None else ""
    in_prompt = [
        passage for passage in built.context.passages if passage_label(passage.source, passage.heading) in text
    ]
    by_tools = [passage for past in rounds for result in past.results for passage in result.passages]
    return tuple(dict.fromkeys([*in_prompt, *by_tools]))


def _degraded(built: BuiltPrompt) -> tuple[Degraded, ...]:
    return tuple(Degraded(block.block, block.why) for block in built.context.degraded)


def _sources(built: BuiltPrompt, passages: Sequence[Passage]) -> tuple[Source, ...]:
    """Return the sources of *passages*, each once. People read them below the reply, so names that a censor stops are
    left out."""
    return tuple(
        dict.fromkeys(
            Source(passage.source, passage.heading)
            for passage in passages
            if not _is_stopped(built, f"{passage.source}\n{passage.heading}")
        )
    )


def _is_stopped(built: BuiltPrompt, text: str) -> bool:
    return censors.blocking_censor(built.context.censors, text) is not None


def answered_ids(batch: Batch) -> tuple[str, ...]:
    """Return the ids of the messages that the turn answers."""
    return tuple(envelope.message.message_id for envelope in batch.envelopes)


def superseded(batch: Batch) -> tuple[str, ...]:
    """Return the ids of the messages that the newest one replaced: all others if it interrupts, else none."""
    return answered_ids(batch)[:-1] if batch.envelopes[-1].queue == "interrupt" else ()


def reply_to(batch: Batch) -> str | None:
    """Return the message that the reply refers to: in a group the last one that it answers, else None."""
    last = batch.envelopes[-1].message
    return None if last.direct else last.message_id

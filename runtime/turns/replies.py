"""What a turn says in the end: the model's answer, or an apology that helps. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from config.settings import EXTRACTIVE
from connectors.message import GIVEN_UP, AgentRuntimeError, Degraded, OutboundMessage, Role, Source
from grounding.prompt import CheckedReply, ContextTooLarge, check_citations, label
from grounding.prompt_input import Censor, Passage
from runtime.attachments import Contents
from runtime.billing import BudgetExceeded
from runtime.llm import Completion, ModelFailed, replace_surrogates
from runtime.turns import censors
from runtime.turns.batch import Batch
from runtime.turns.rounds import Round, as_one, total
from runtime.turns.turn_state import BuiltPrompt

QUOTED = "I can only quote what the documents and my memory say:"

BUDGET_EXCEEDED = "budget_exceeded"
STOPPED = "stopped"
"""The reason why an answer ended: people wanted no more of it."""
NOTHING_SAID = "_Stopped._"
"""What is recorded of an answer that was stopped before its first word."""


def draft(batch: Batch) -> OutboundMessage:
    """The answer to *batch*, of which nothing is written yet."""
    return OutboundMessage(
        key=batch.key,
        turn_id=batch.turn_id,
        text="",
        answers=answered(batch),
        superseded=superseded(batch),
        reply_to=reply_to(batch),
    )


def cut_short(text: str, model: str, *, asked: bool = True) -> Completion:
    """What was written of an answer when it was stopped; what it cost is not known. If no model was being *asked*,
    no attempt is in it."""
    said = replace_surrogates(text).strip()
    return Completion(
        text=f"{said} …" if said else NOTHING_SAID, model=model, finish_reason=STOPPED, attempts=int(asked)
    )


def stopped(reply: OutboundMessage) -> OutboundMessage:
    """*reply*, which was stopped. Before its first word there is nothing to show: who said ``/stop`` is told by its own
    answer, and twice the same would be once too often."""
    return replace(reply, silent=reply.text == NOTHING_SAID, stopped=True)


def answer(batch: Batch, built: BuiltPrompt, completion: Completion, rounds: Sequence[Round] = ()) -> OutboundMessage:
    """The model's answer to *batch*: *completion*, which the *rounds* before it are part of. Its sources are what it
    cites, or if it cites nothing what it was given; `EXTRACTIVE` cites all that it uses."""
    one = as_one(rounds, completion)
    censor = censors.stopping(built.context.censors, one.text)
    if censor is not None:
        return _censored(batch, built, one, censor)
    found = checked_answer(one, built, rounds)
    used = found.cited if one.model == EXTRACTIVE else found.cited or given_passages(built, rounds)
    attached = _attached(built)
    return replace(
        draft(batch),
        text=found.text,
        strategy=built.context.strategy,
        reason=built.context.reason,
        sources=_sources(built, [passage for passage in used if passage not in attached]),
        shows_sources=batch.envelopes[-1].shows_sources,
        degraded=tuple(Degraded(part.block, part.why) for part in built.context.degraded),
        usage=one.usage,
    )


def _censored(batch: Batch, built: BuiltPrompt, completion: Completion, censor: Censor) -> OutboundMessage:
    """What is said in the place of an answer that goes against *censor*: why there is none."""
    return replace(
        draft(batch),
        text=f"I stopped my answer, because it goes against a rule that holds here: {censors.because(censor)}.",
        kind="apology",
        error_code=censors.CENSORED,
        strategy=built.context.strategy,
        reason=built.context.reason,
        degraded=tuple(Degraded(part.block, part.why) for part in built.context.degraded),
        usage=completion.usage,
    )


def apology(
    batch: Batch,
    built: BuiltPrompt | None,
    error: ContextTooLarge | ModelFailed,
    quotation: str = "",
    rounds: Sequence[Round] = (),
) -> OutboundMessage:
    """What is said when no model answered: why, to admins what to do about it, and the *quotation* that answers
    instead, unless a censor stops it. *rounds* were paid for before."""
    base = replace(draft(batch), kind="apology", usage=total(one.completion.usage for one in rounds))
    if isinstance(error, ContextTooLarge) or built is None:
        mark = batch.envelopes[-1].message.command_mark
        text = error.user_text.replace("`/", f"`{mark}")  # the commands in it, as people write them there
        return replace(base, text=text, error_code="context_too_large")
    is_admin = batch.envelopes[-1].role is Role.ADMIN
    text = (error.admin_text if is_admin else "") or error.user_text
    used: tuple[Passage, ...] = ()
    if quotation and not _is_stopped(built, quotation):
        found = checked_answer(Completion(quotation, EXTRACTIVE), built, rounds)
        text, used = f"{text} {QUOTED}\n\n{found.text}", found.cited
    return replace(
        base,
        text=text,
        error_code=f"model_{error.why}",
        strategy=built.context.strategy,
        reason=built.context.reason,
        sources=_sources(built, used),
        degraded=(
            Degraded("model", error.why),
            *(Degraded(part.block, part.why) for part in built.context.degraded),
        ),
    )


def unheard(batch: Batch, contents: Contents) -> OutboundMessage:
    """What is said to a voice message that could not be heard, if nothing else was said."""
    return replace(
        draft(batch),
        text=contents.unheard,
        kind="apology",
        degraded=tuple(Degraded(part.block, part.why) for part in contents.degraded),
        error_code="voice_unheard",
    )


def spent(batch: Batch, error: BudgetExceeded, rounds: Sequence[Round] = ()) -> OutboundMessage:
    """What is said if a budget leaves nothing for a model call; *rounds* were paid for before."""
    return replace(
        draft(batch),
        text=error.user_text,
        kind="apology",
        error_code=BUDGET_EXCEEDED,
        usage=total(one.completion.usage for one in rounds),
    )


def broken(batch: Batch) -> OutboundMessage:
    """What is said when a turn broke in a way that nobody foresaw."""
    return replace(
        draft(batch),
        text=AgentRuntimeError.user_text,
        kind="apology",
        error_code=GIVEN_UP,
    )


def checked_answer(completion: Completion, built: BuiltPrompt, rounds: Sequence[Round] = ()) -> CheckedReply:
    """The answer with its citations checked against what the model was given, in its prompt or by tools."""
    told = [result.text for one in rounds for result in one.results]
    citable = (*given_passages(built, rounds), *_material(built), *_attached(built))
    return check_citations(completion.text, citable, "\n".join([built.prompt.user, *told]))


def _material(built: BuiltPrompt) -> tuple[Passage, ...]:
    """The files that were given whole, which a reply may cite."""
    material = built.context.codex
    files = material.files if material is not None else ()
    return tuple(Passage(source=file.path, heading="", text=file.text, score=0.0) for file in files)


def _attached(built: BuiltPrompt) -> tuple[Passage, ...]:
    """The files that came with the message, of which the model read the text, as what may be cited. People sent them
    themselves: they are named nowhere else."""
    files = built.context.query.files
    return tuple(Passage(source=file.name, heading="", text="", score=0.0) for file in files if file.text)


def given_passages(built: BuiltPrompt, rounds: Sequence[Round] = ()) -> tuple[Passage, ...]:
    """The passages that stand in the prompt, in its order, and then those that tools found."""
    retrieved = built.prompt.block("retrieved")
    text = retrieved.text if retrieved is not None else ""
    shown = [one for one in built.context.passages if label(one.source, one.heading) in text]
    found = [passage for one in rounds for result in one.results for passage in result.passages]
    return tuple(dict.fromkeys([*shown, *found]))


def _sources(built: BuiltPrompt, passages: Sequence[Passage]) -> tuple[Source, ...]:
    """If *passages* come from, each once, but for names that a censor stops: people read them below the reply."""
    return tuple(
        dict.fromkeys(
            Source(passage.source, passage.heading)
            for passage in passages
            if not _is_stopped(built, f"{passage.source}\n{passage.heading}")
        )
    )


def _is_stopped(built: BuiltPrompt, text: str) -> bool:
    return censors.stopping(built.context.censors, text) is not None


def answered(batch: Batch) -> tuple[str, ...]:
    """The messages that the turn answers."""
    return tuple(envelope.message.message_id for envelope in batch.envelopes)


def superseded(batch: Batch) -> tuple[str, ...]:
    """Those of the messages whose place the newest took: if it interrupts, all others."""
    return answered(batch)[:-1] if batch.envelopes[-1].queue == "interrupt" else ()


def reply_to(batch: Batch) -> str | None:
    """In a group the reply hangs at the last message it answers."""
    last = batch.envelopes[-1].message
    return None if last.direct else last.message_id

"""The frames that ship, with English, German, French and Spanish cues. FRAMES.toml adds those of a workspace."""

from __future__ import annotations

from grounding.cues.kinds import phrases
from grounding.memory.frames.frame import CONVERSATION, QUESTION, Frame, Frames
from grounding.memory.records.record import Type

_DECISION, _FACT, _PROCEDURE = Type.DECISION, Type.FACT, Type.PROCEDURE
_EPISODE, _ITEM = Type.EPISODE, Type.ITEM

_FRAMES = (
    Frame(
        CONVERSATION,
        "Talking: nothing in particular is asked for.",
        priorities={_FACT: 0.8, _EPISODE: 0.8, _ITEM: 0.6, _DECISION: 0.4, _PROCEDURE: 0.2},
        shape={_DECISION: 0.5, _FACT: 0.5, _PROCEDURE: 0.25, _EPISODE: 0.75, _ITEM: 0.5},
    ),
    Frame(
        QUESTION,
        "A question: answer it from what is known, and say what is not.",
        ("What is known about this?", "How sure is it, and how old?"),
        {_FACT: 1.0, _DECISION: 0.7, _PROCEDURE: 0.5, _EPISODE: 0.5, _ITEM: 0.5},
        {_FACT: 1.25, _DECISION: 0.75, _PROCEDURE: 0.75},
    ),
    Frame(
        "task",
        "Something is to be done: follow what has worked, and keep track of what is left.",
        ("How was this done before?", "What is done, what is open, and by when?", "What could go wrong?"),
        {_PROCEDURE: 1.0, _ITEM: 0.9, _FACT: 0.6, _DECISION: 0.6, _EPISODE: 0.4},
        {_PROCEDURE: 1.25, _ITEM: 1.5, _DECISION: 0.75},
        phrases("""
            remind me, to do, todo, todos, to-do, task, tasks, deadline, schedule, set up, how do i, how do we
            how to, step by step, steps, checklist, deploy, install, migrate, release, prepare, plan the, next steps
            organise, organize, draft the, book a, order the, fill in
            erinnere mich, aufgabe, aufgaben, frist, fällig, termin, termine, wie mache ich, wie geht, schritte
            schritt für schritt, checkliste, einrichten, installieren, veröffentlichen, vorbereiten, nächste schritte
            rappelle-moi, tâche, tâches, échéance, comment faire, étapes, étape par étape, installer, déployer
            préparer, prochaines étapes
            recuérdame, tarea, tareas, plazo, cómo hago, cómo se hace, pasos, paso a paso, instalar, desplegar
            preparar, próximos pasos
        """),
        rank=1,
    ),
    Frame(
        "creative",
        "Something new is to be made: offer several different ideas before refining one.",
        ("Who is it for, and in what tone?", "What has been tried, and what was liked?"),
        {_FACT: 0.8, _EPISODE: 0.8, _DECISION: 0.4, _PROCEDURE: 0.4, _ITEM: 0.3},
        {_DECISION: 0.5, _PROCEDURE: 0.5, _EPISODE: 1.25},
        phrases("""
            brainstorm, brainstorming, ideas for, idea for, come up with, imagine, invent, slogan, slogans, tagline
            story, poem, write a poem, write a story, name for, names for, creative, headline, headlines, lyrics
            ideen für, idee für, denk dir, erfinde, gedicht, geschichte, namen für, kreativ, überschrift
            idées pour, idée pour, invente, poème, histoire, noms pour, créatif, créative
            ideas para, inventa, poema, cuento, nombres para, creativo, creativa, lluvia de ideas
        """),
        rank=2,
    ),
    Frame(
        "decision",
        "A choice is to be made: weigh the alternatives against what was decided before and why.",
        (
            "What are we optimising for?",
            "What did we decide last time, and what came of it?",
            "What are the constraints, and which alternatives are there?",
        ),
        {_DECISION: 1.0, _PROCEDURE: 0.8, _FACT: 0.6, _EPISODE: 0.4, _ITEM: 0.3},
        {_DECISION: 1.5, _PROCEDURE: 1.0, _EPISODE: 0.75, _ITEM: 0.5},
        phrases("""
            should we, should i, shall we, decide, deciding, decision, decisions, choose, choosing, which option
            which one should, better to, or should, pros and cons, trade-off, trade-offs, tradeoff, tradeoffs
            alternatives, alternative to, instead of, compare, versus, vs, prefer, recommend, recommendation, worth it
            worth using, would it be better, evaluate, go with, switch to, opt for
            sollen wir, sollten wir, soll ich, sollte ich, entscheiden, entscheidung, entscheidungen, wählen
            welche option, besser, vor- und nachteile, alternativen, statt, vergleiche, vergleichen, empfiehlst
            empfehlung, lohnt sich
            devrions-nous, devrait-on, dois-je, décider, décision, décisions, choisir, quelle option, avantages
            inconvénients, comparer, au lieu de, recommandes, vaut-il mieux
            deberíamos, debería, decidir, decisión, decisiones, elegir, qué opción, ventajas, desventajas, comparar
            en lugar de, recomiendas, conviene
        """),
        rank=3,
    ),
    Frame(
        "debugging",
        "Something does not work: find the cause before changing anything.",
        (
            "What exactly happens, and since when?",
            "What was changed last?",
            "Has this happened before, and what was it then?",
        ),
        {_EPISODE: 1.0, _PROCEDURE: 0.9, _FACT: 0.7, _DECISION: 0.5, _ITEM: 0.3},
        {_EPISODE: 1.5, _PROCEDURE: 1.25, _DECISION: 0.75, _ITEM: 0.5},
        phrases("""
            bug, bugs, error, errors, exception, exceptions, stack trace, stacktrace, traceback, crash, crashes, crashed
            crashing, broken, breaks, fail, fails, failed, failing, failure, does not work, doesn't work, not working
            isn't working, stopped working, won't start, debug, debugging, hangs, timeout, timeouts, times out
            segfault, regression, what is wrong, what's wrong, went wrong, root cause, investigate, outage
            fehler, fehlermeldung, absturz, abgestürzt, stürzt ab, kaputt, funktioniert nicht, geht nicht mehr
            geht nicht, klappt nicht, fehlgeschlagen, schlägt fehl, hängt, ursache, ausfall
            erreur, erreurs, plantage, plante, cassé, cassée, ne marche pas, ne fonctionne pas, marche plus, échoue
            panne, bogue
            errores, fallo, fallos, falla, se cuelga, no funciona, dejó de funcionar, roto, rota, avería, depurar
        """),
        rank=4,
    ),
)

ACTING = phrases("""
    go ahead, do it, let's do it, let's go with, we'll go with, let's do that, do that, proceed, ship it, make it so
    as decided, as we decided, implement it, roll it out, execute, carry it out, deploy it, merge it
    mach das, leg los, los geht's, machen wir so, so machen wir, wie beschlossen, wie entschieden, setz es um
    vas-y, allons-y, faisons ça, fais-le, comme décidé, procède
    hazlo, adelante, hagámoslo, como decidimos, procede
""")
"""Cues that tell the bot to go ahead with a decision."""

SHIPPED = Frames({frame.name: frame for frame in _FRAMES}, ACTING)
"""In the order in which they are displayed."""

"""The cue sets that ship, by the name of the language."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any

from connectors.message import AgentRuntimeError
from grounding.strategy.cues import KINDS, Cues, phrases, words_of

# ---- english ----
#
# English cues: the ones that every workspace has.


ENGLISH = Cues(
    small_talk=phrases("""
        hi, hii, hello, hey, heya, hiya, howdy, yo, sup, greetings, hi there, hello there, hey there
        good morning, good afternoon, good evening, good night, good day, morning, evening, thanks, thank you
        thanks a lot, thanks a bunch, thank you so much, many thanks, thx, ty, cheers, much appreciated
        i appreciate it, appreciate it, appreciated, ok, okay, okey, k, kk, cool, nice, great, awesome, perfect
        sweet, neat, wonderful, excellent, lovely, good, fine, good job, well done, nice one, got it, understood
        makes sense, sounds good, alright, all right, no problem, np, no worries, you're welcome, youre welcome
        welcome, lol, haha, hahaha, hehe, wow, bravo, congrats, congratulations, bye, bye bye, goodbye, good bye
        see you, see you tomorrow, see you soon, see you then, see you around, see you next week, see ya, cya
        see you later, later, take care, talk to you later, ttyl, have a nice day
        have a good day, have a great day, have a nice weekend, have a good weekend, how are you
        how are you doing, how are you today, how are things, how's it going, hows it going, how is it going
        how do you do, what's up, whats up, what is up, wassup, are you there, you there, anyone there
        anybody there, are you awake, are you ok, are you okay, are you alive, how fast are you
        how have you been, how's your day, hows your day, how is your day, how was your day, nice to meet you
        pleased to meet you, good to see you, sorry, my bad, please, that's great, thats great, that's nice
        thats nice, that's all, thats all, that is all, that helps, that helped, very helpful, you're great
        you are great, you rock
    """),
    filler=phrases("""
        there, bot, agent, assistant, friend, buddy, mate, pal, dude, man, all, everyone, everybody, team, folks
        guys, again, so, very, really, a, lot, much, too, to, you, for, that, this, it, the, your, help, today
        now, oh, ah, hm, hmm, uh, um, well, then, and, just, is, was, very much, quick, reply, answer, me, my
        dear, kind, both, guy
    """),
    asks_history=phrases("""
        what do you mean, what does that mean,
        what did we, what have we, what were we, what had we, what did you, what were you saying
        what was it you, what did i, what have i, what was i, where were we, where did we, when did we
        when did i, why did we, who did we, how did we, did we, did i say, did i tell, did i ask, did i mention
        did you say, did you tell, did you mention, have we, have i told, have you told, do you remember
        can you remember, you remember, remember when, remember what, remember how, remember our, remember my
        remember me, remind me what we, remind me what i, remind me what you, what do you know about me
        what is my name, what's my name, whats my name, who am i, summarize our, summarise our
        summarize this conversation, summarise this conversation, summarize this chat, summary of our
        summary of this conversation, summary of this chat, recap our, catch me up, what was my last
        what was your last, what was my previous, what was your previous, what was the last thing
        what was the question, what was my question, say that again, repeat that, repeat your last, come again
        what you said, what i said, what we said, our last conversation, our last discussion
        recap this conversation, recap this chat, recap what we, recap of our, recap of this, quick recap
        short recap
    """),
    refers_to_history=phrases("""
        as we discussed, as discussed, as we talked, as we said, as we agreed, as agreed, as i said
        as i mentioned, as i told, as you said, as you mentioned, as you suggested, as mentioned, as above
        like i said, like you said, like we said, like we discussed, like before, as before, same as before
        said before, mentioned before, asked before, told before, from before, we discussed, we talked about
        we talked, we spoke, we said, we agreed, we decided, we settled on, we were talking, we were discussing
        you said, you told me, you mentioned, you suggested, you recommended, you proposed, you promised
        you wrote, i said, i told you, i mentioned, i gave you, i sent you, earlier, previous message
        previous messages, previous question, previous answer, previous reply, previous conversation
        previous discussion, previous point, last message, last messages, last question, last answer, last reply
        last time, last conversation, last discussion, last session, our conversation, our chat, our discussion
        this conversation, this chat, this thread, follow up on, following up, follow-up, to follow up
        continue from, continue with, continue where, continue our, let's continue, lets continue, pick up where
        left off, back to what, back to what we said, back to what we discussed, back to what you said
        back to what i said, going back to, remember that we, remember that i, remember that you, remember i
        remember we, remember you, i asked you, i asked before, i asked earlier, previously discussed
        previously said, previously mentioned, previously agreed, previously decided, previous one
        previous step, previous topic, previous plan, previous approach, you previously, we previously
    """),
    weakly_asks_history=phrases("""
        what changed, what has changed, what's changed, whats changed
    """),
    continues=phrases("""
        continue, go on, carry on, keep going, go ahead, proceed, more, next, and then, recap, summarize, summarise
    """),
    follow_ups=phrases("and, or, but, so, then, also, what about, how about, what if"),
    documents=phrases("""
        docs, documentation, readme, policy, policies, pricing, price list, runbook, runbooks, handbook
        handbooks, wiki, playbook, playbooks, guideline, guidelines, knowledge base, codebase, repo, repos
        repository, repositories, which file, which files, which document, which documents, which doc
        which page, what file, what document, the document, the documents, our documents, our document
        these documents, this document, the doc, our doc, the file says, in the file, in the files
        in the workspace, in workspace, in our workspace, in this workspace, our files, changelog, release notes
        faq, terms of service, service level agreement, sop, sops, according to our
        standard operating procedure, standard operating procedures, onboarding guide, the manual, our manual
        user manual
    """),
    search=phrases("""
        search, search for, find, lookup, look up, look for, where is, where are, where's, wheres, where do i find
    """),
    anchors=phrases("""
        workspace, project, file, files, folder, folders, directory, directories, path, paths, document
        documents, doc, markdown, md, repo, repository, codebase, docs, readme, wiki
    """),
    parts=("page", "pages", "section", "sections", "chapter", "chapters", "appendix"),
    containers=phrases("""
        docs, doc, documentation, document, documents, file, files, page, pages, folder, folders, directory, markdown
        workspace, knowledge base, repo, repository, codebase, wiki, handbook, manual, search, look up, lookup, look for
        find, which, show me, tell me, explain, explains, describe, describes, hold, holds, contain, contains, mention
        mentions, cover, covers, say, says, said, according to, please, thanks, thank you, hi, hello, hey
        as we discussed, as discussed, as agreed, as i said, as you said, earlier, previously
    """),
    question_words=phrases("""
        how, what, why, when, where, which, who, whose, can, could, do, does, did, is, are, was, were, should
        would, will, may, what's, whats, where's, who's, how's
    """),
    idioms=phrases("""
        earlier than, earlier version, earlier versions, earlier release, earlier releases, earlier this
        earlier models, earlier works, file system, file systems, filesystem, file size, file sizes, file format
        file formats, file extension, i file, to file, file my, file a, file an, file for, file taxes, nail file
        critical path, career path, cycle path, document type, project management, manila folder, welcome to
        node.js, next.js, vue.js, react.js, three.js, nuxt.js, express.js, d3.js, asp.net, vb.net, ml.net, ado.net
        one last question, a last question, the last time i
    """),
    assistant=phrases("you, your, yours, yourself, you're, youre, you've, you'd, you'll, ur, assistant, chatbot"),
    polite_requests=phrases("""
        can you, could you, would you, will you, do you know, do you have, are you able to, you tell me
        you explain, you show me, you give me, you help me, thank you, help you, what do you, how do you, if you
        when you
    """),
)
"""The cues of every workspace."""


# ---- french ----
#
# French cues, for workspaces that choose them. Accents make no difference; "l'" and the like are words.


FRENCH = Cues(
    small_talk=phrases("""
        bonjour, bonsoir, salut, coucou, bonne nuit, bonne journée, bonne soirée, bon week-end, merci, merci beaucoup
        merci bien, un grand merci, mille mercis, d'accord, ok, parfait, super, génial, excellent, très bien, bien
        nickel, compris, entendu, ça marche, de rien, pas de souci, pas de problème, au revoir, à bientôt, à demain
        à plus, à plus tard, à tout à l'heure, ça va, comment ça va, comment vas-tu, comment allez-vous, quoi de neuf
        tu es là, désolé, désolée, pardon, enchanté, enchantée, bien joué, bravo, ça aide
    """),
    filler=phrases("""
        à, tous, toutes, et, très, pour, ton, votre, aide, réponse, ça, c, est, aujourd'hui, encore, le, la, les, de
        du, bot, équipe, oui, alors, donc, bon, ah, oh, toi, vous, te
    """),
    asks_history=phrases("""
        avons-nous décidé, avons-nous dit, avons-nous convenu, a-t-on décidé, a-t-on dit, qu'est-ce qu'on a décidé
        qu'est-ce qu'on a dit, qu'est-ce que tu as dit, qu'est-ce que j'ai dit, qu'as-tu dit, qu'ai-je dit
        que veux-tu dire, qu'est-ce que tu veux dire, de quoi parlions-nous, de quoi parlait-on, où en étions-nous
        où en était-on, te souviens-tu, tu te souviens, vous souvenez-vous, te rappelles-tu, tu te rappelles
        comment je m'appelle, qui suis-je, quelle était ma dernière, quelle était ta dernière, quelle était ma question
        résume notre, résumez notre, résume cette conversation, résume ce fil, répète ça, redis ça, répète ta dernière
        notre dernière conversation
    """),
    refers_to_history=phrases("""
        comme convenu, comme discuté, comme dit, comme je disais, comme je l'ai dit, comme tu l'as dit, comme tu disais
        comme nous avons dit, comme avant, comme tout à l'heure, tu as dit, tu disais, vous avez dit, tu as mentionné
        tu as proposé, tu as suggéré, tu m'as dit, je t'ai dit, j'ai dit, nous avons dit, nous avons décidé
        on avait dit, précédemment, message précédent, question précédente, réponse précédente, dernier message
        dernière question, dernière réponse, cette conversation, ce fil, notre conversation, notre discussion
        revenons à ce que, pour revenir à
    """),
    weakly_asks_history=phrases("qu'est-ce qui a changé, quoi de neuf depuis"),
    continues=phrases("continue, continuez, vas-y, poursuis, et ensuite, encore, plus, résumé, résume"),
    follow_ups=phrases("et, ou, mais, et pour, qu'en est-il"),
    documents=phrases("""
        documentation, notre politique, nos politiques, la politique de, politique de congés, politique tarifaire
        politique de remboursement, grille tarifaire, tarifs, liste de prix, manuel, manuels, guide, guides
        mode d'emploi, base de connaissances, wiki, readme, dépôt, repo, changelog, conditions générales, faq
        quel fichier, quels fichiers, quel document, quels documents, quelle page, dans quel fichier
        dans quel document, le document, les documents, nos documents, dans le fichier, dans les fichiers, selon notre
    """),
    search=phrases(
        "cherche, chercher, recherche, trouve, trouver, consulte, où est, où sont, où se trouve, où trouver"
    ),
    anchors=phrases("""
        projet, projets, fichier, fichiers, dossier, dossiers, répertoire, répertoires, chemin, document, documents
        espace de travail, markdown
    """),
    parts=phrases("page, pages, section, sections, chapitre, chapitres, annexe, annexes"),
    containers=phrases("""
        documentation, document, documents, fichier, fichiers, page, dossier, manuel, wiki, cherche, trouve, quel
        quelle, montre-moi, dis-moi, explique, décrit, contient, mentionne, dit, selon, s'il te plaît, s'il vous plaît
        merci, bonjour, comme convenu
    """),
    question_words=phrases("""
        comment, que, qu, quoi, pourquoi, quand, où, quel, quelle, quels, quelles, qui, combien, peux-tu, pouvez-vous
        pourrais-tu, est-ce, y a-t-il, dans quel, dans quelle, existe-t-il, faut-il
    """),
    assistant=phrases("tu, toi, ton, ta, tes, vous, votre, vos"),
    polite_requests=phrases("peux-tu, pourrais-tu, pouvez-vous, pourriez-vous, s'il te plaît, s'il vous plaît"),
)
"""Not complete: a start for workspaces that extend it."""


# ---- german ----
#
# German cues, for workspaces that choose them.


GERMAN = Cues(
    small_talk=phrases("""
        hallo, hi, hey, moin, moin moin, servus, grüß gott, grüezi, grüß dich, guten morgen, guten tag, guten abend
        gute nacht, morgen, danke, danke schön, dankeschön, danke dir, danke sehr, vielen dank, besten dank
        herzlichen dank, merci, alles klar, klar, passt, gut, sehr gut, super, toll, prima, klasse, perfekt, cool
        genial, verstanden, in ordnung, okay, kein problem, gern geschehen, bitte schön, tschüss, tschüs, ciao
        bis morgen, bis bald, bis später, bis dann, bis gleich, auf wiedersehen, mach's gut, schönen tag
        schönen abend, schönes wochenende, schönen feierabend, wie geht's, wie gehts, wie geht es, wie geht es dir
        wie geht es ihnen, was geht, bist du da, jemand da, tut mir leid, sorry, entschuldigung, freut mich
        das hilft, das hilft mir, gut gemacht
    """),
    filler=phrases("""
        und, zusammen, alle, allerseits, leute, team, bot, dir, euch, ihnen, sehr, ganz, so, noch, schon, dann, mal
        ja, ach, oh, na, also, das, ist, war, für, die, deine, hilfe, antwort, schnelle, mir, heute, nochmal, dafür
        einen, ein, wieder, bitte
    """),
    asks_history=phrases("""
        was haben wir, worüber haben wir, wann haben wir, warum haben wir, haben wir schon, was hatten wir
        was hast du gesagt, was hast du gemeint, was meinst du, was meinst du damit, was habe ich, was hab ich
        habe ich dir, hab ich dir, habe ich gesagt, habe ich erwähnt, hast du gesagt, hast du erwähnt, weißt du noch
        wissen sie noch, erinnerst du dich, erinnern sie sich, wie heiße ich, wer bin ich, was war meine letzte
        was war deine letzte, was war meine frage, was war die frage, wo waren wir, fass unser, fasse unser
        fass unsere, fasse unsere, fass das gespräch, fasse das gespräch, fass diesen chat, sag das nochmal
        sag das noch mal, wiederhole das, wiederhol das, wiederhole deine letzte, unser letztes gespräch
    """),
    refers_to_history=phrases("""
        wie besprochen, wie vereinbart, wie abgemacht, wie gesagt, wie erwähnt, wie oben, wie vorhin, wie zuvor
        wie ich gesagt, wie ich schon, wie du gesagt, wie du vorgeschlagen, wie wir besprochen, wir haben besprochen
        haben wir besprochen, haben wir vereinbart, wir hatten gesagt, du hast gesagt, du sagtest, du meintest
        du hast erwähnt, du hast vorgeschlagen, du hattest, sie sagten, ich habe gesagt, ich sagte, ich hatte gesagt
        ich habe dir, vorhin, deine letzte antwort, meine letzte frage, letzte nachricht, letzte nachrichten
        vorherige antwort, vorherige nachricht, in diesem chat, in diesem gespräch, in diesem thread
        unser gespräch, unsere unterhaltung, zurück zu dem, zurück zu unserem
    """),
    weakly_asks_history=phrases("was hat sich geändert, was ist neu"),
    continues=phrases("weiter, mach weiter, fahr fort, weitermachen, und dann, mehr, bitte weiter, zusammenfassung"),
    follow_ups=phrases("und, oder, aber, auch, was ist mit, wie ist es mit, wie sieht es mit, und was ist mit"),
    documents=phrases("""
        doku, dokumentation, dokumentationen, handbuch, handbücher, handbuchs, benutzerhandbuch, richtlinie, richtlinien
        preisliste, preislisten, leitfaden, leitfäden, anleitung, anleitungen, betriebsanleitung, wissensdatenbank
        wiki, readme, repository, repo, changelog, faq, agb, betriebsvereinbarung, urlaubsrichtlinie
        reiserichtlinie, datenschutzerklärung, welche datei, welche dateien, welches dokument, welche dokumente
        in welcher datei, in welchem dokument, auf welcher seite, welche seite, das dokument, die dokumente
        den dokumenten, unsere dokumente, unseren dokumenten, in der datei, in den dateien, laut unserer
    """),
    search=phrases(
        "such, suche, suchen, finde, find, schau nach, nachschlagen, schlag nach, wo ist, wo sind, wo finde ich"
    ),
    anchors=phrases("""
        projekt, projekts, projekte, datei, dateien, ordner, ordnern, verzeichnis, verzeichnisse, pfad, dokument
        dokumente, dokumenten, arbeitsbereich, markdown
    """),
    parts=phrases("seite, seiten, abschnitt, abschnitte, kapitel, anhang"),
    containers=phrases("""
        doku, dokumentation, dokument, dokumente, dokumenten, datei, dateien, seite, seiten, ordner, verzeichnis
        handbuch, wiki, suche, such, finde, welche, welches, welcher, zeig mir, sag mir, erkläre, erklär, erklärt
        beschreibt, enthält, steht, laut, bitte, danke, hallo, wie besprochen, wie gesagt
    """),
    question_words=phrases("""
        wie, was, warum, wieso, weshalb, wann, wo, wohin, woher, welche, welcher, welches, welchen, wer, wen, wem
        wessen, kann, kannst, können, könntest, gibt, ist, sind, hat, haben, darf, soll, muss, wird
    """),
    idioms=phrases("morgen früh, vorhin schon"),
    assistant=phrases("du, dich, dir, dein, deine, deinen, deinem, deiner"),
    polite_requests=phrases("kannst du, könntest du, würdest du, weißt du, hast du, danke dir"),
)
"""Not complete: compounds ("Reisekostenrichtlinie") have to be named, or be found by the workspace's vocabulary."""


# ---- spanish ----
#
# Spanish cues, for workspaces that choose them. Accents make no difference.


SPANISH = Cues(
    small_talk=phrases("""
        hola, buenas, buenos días, buen día, buenas tardes, buenas noches, gracias, muchas gracias, mil gracias
        muchísimas gracias, te lo agradezco, vale, de acuerdo, ok, perfecto, genial, excelente, estupendo, bien
        muy bien, entendido, claro, listo, de nada, no hay problema, adiós, chao, chau, hasta luego, hasta mañana
        hasta pronto, nos vemos, qué tal, cómo estás, cómo está, cómo va, cómo te va, estás ahí, lo siento, perdón
        disculpa, encantado, encantada, buen trabajo, eso ayuda
    """),
    filler=phrases("""
        a, todos, todas, y, muy, por, favor, tu, su, la, el, ayuda, respuesta, eso, esto, es, hoy, otra, vez, bot
        equipo, amigo, amiga, ya, pues, bueno, entonces, de, nuevo, me, te
    """),
    asks_history=phrases("""
        qué decidimos, qué hemos, qué acordamos, qué dijimos, qué dijiste, qué has dicho, qué dije, qué te dije
        qué te pregunté, qué quieres decir, a qué te refieres, de qué hablamos, de qué hablábamos, dónde estábamos
        cuándo dijimos, te acuerdas, recuerdas, te he dicho, te dije ya, cómo me llamo, quién soy
        cuál fue mi última, cuál fue tu última, cuál era mi, cuál era la pregunta, resume nuestra, resúmeme nuestra
        resume esta conversación, resume este chat, repite eso, repite tu última, dilo otra vez
        nuestra última conversación
    """),
    refers_to_history=phrases("""
        como acordamos, como quedamos, como hablamos, como dijimos, como dije, como te dije, como dijiste
        como mencionaste, como comentamos, como antes, dijiste, mencionaste, sugeriste, propusiste, me dijiste
        te dije, te conté, te mencioné, lo que hablamos, lo que dijimos, antes dijiste, anteriormente
        mensaje anterior, pregunta anterior, respuesta anterior, último mensaje, última pregunta, última respuesta
        esta conversación, este chat, este hilo, nuestra conversación, volviendo a lo que, volviendo a
    """),
    weakly_asks_history=phrases("qué ha cambiado, qué cambió"),
    continues=phrases("continúa, continua, sigue, adelante, prosigue, y luego, más, resumen, resume"),
    follow_ups=phrases("y, o, pero, qué pasa con, qué hay de"),
    documents=phrases("""
        documentación, nuestra política, la política de, las políticas, nuestras políticas, política de vacaciones
        política de reembolsos, política de precios, política de devoluciones, lista de precios, precios, manual
        manuales, guía, guías, guía de estilo, base de conocimientos, base de conocimiento, wiki, readme
        repositorio, repo, changelog, términos de servicio, condiciones de uso, preguntas frecuentes, qué archivo
        qué archivos, qué documento, qué documentos, qué fichero, qué página, en qué archivo, en qué documento
        el documento, los documentos, nuestros documentos, en los documentos, en el archivo, según nuestra
        según nuestro
    """),
    search=phrases("busca, buscar, encuentra, encontrar, consulta, dónde está, dónde están, dónde encuentro"),
    anchors=phrases("""
        proyecto, proyectos, archivo, archivos, fichero, ficheros, carpeta, carpetas, directorio, directorios, ruta
        documento, documentos, espacio de trabajo, markdown
    """),
    parts=phrases("página, páginas, sección, secciones, capítulo, capítulos, apéndice, anexo"),
    containers=phrases("""
        documentación, documento, documentos, archivo, archivos, fichero, página, carpeta, manual, wiki, busca, buscar
        encuentra, qué, cuál, muéstrame, dime, explica, describe, contiene, menciona, dice, según, por favor, gracias
        hola, como acordamos, como dijimos
    """),
    question_words=phrases("""
        cómo, qué, por qué, cuándo, dónde, cuál, cuáles, quién, quiénes, cuánto, cuánta, cuántos, cuántas, puede
        puedes, podrías, hay, es, son, está, están, en qué, tiene
    """),
    assistant=phrases("tú, tu, tus, ti, contigo, usted"),
    polite_requests=phrases("tu ayuda"),
)
"""Not complete: a start for workspaces that extend it."""


# ---- languages ----


LANGUAGES = {"french": FRENCH, "german": GERMAN, "spanish": SPANISH}
"""Those that a workspace may choose beside English."""


def spoken(languages: Iterable[str]) -> Cues:
    """English and *languages* together. Raises KeyError for a language that does not ship."""
    return reduce(Cues.joined, (LANGUAGES[language] for language in languages), ENGLISH)


# ---- file ----
#
# What a workspace changes about the cues: ``CUES.toml``, read and checked. Pure.
#
# ```toml
# languages = ["german"]            # cue sets that ship, beside English
# [add]
# documents = ["price book", "netlist"]
# [remove]
# documents = ["policy"]
# ```


MAX_PHRASES = 2000
"""Of one file. Matching looks at the phrases that begin with a word of the message, so that more would cost memory."""
MAX_PHRASE_CHARACTERS = 100
MAX_PROBLEMS = 10
_PARTS = ("add", "remove")


class InvalidCues(AgentRuntimeError):
    """A file of cues that cannot be used; the text names everything that is wrong with it and what would do."""

    user_text = "These cues cannot be used."


@dataclass(frozen=True, slots=True)
class Changes:
    """What one file says."""

    languages: tuple[str, ...] = ()
    add: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    remove: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def parse(text: str) -> Changes:
    """What *text* says. Raises `InvalidCues` with all that is wrong."""
    try:
        given = tomllib.loads(text)
    except RecursionError:
        raise InvalidCues("no TOML that can be read: brackets in brackets, too deep") from None
    except ValueError as error:  # a TOMLDecodeError, or a number of thousands of digits
        raise InvalidCues(f'no TOML, such as add.documents = ["price book"]: {error}') from error
    problems = [f"{key!r} is unknown: use languages, [add] and [remove]" for key in given if key not in _KEYS]
    languages = _languages(given.get("languages", []), problems)
    parts = {part: _phrases(part, given.get(part, {}), problems) for part in _PARTS}
    if sum(len(phrases) for kinds in parts.values() for phrases in kinds.values()) > MAX_PHRASES:
        problems.append(f"more than {MAX_PHRASES} phrases")
    if problems:
        shown = problems[:MAX_PROBLEMS]
        more = f"; and {len(problems) - len(shown)} more" if len(problems) > len(shown) else ""
        raise InvalidCues("; ".join(shown) + more)
    return Changes(languages, **parts)


_KEYS = ("languages", *_PARTS)


def _languages(given: object, problems: list[str]) -> tuple[str, ...]:
    if not isinstance(given, list):
        problems.append('languages must be a list, such as ["german"]')
        return ()
    known = [one for one in given if isinstance(one, str) and one in LANGUAGES]
    unknown = [one for one in given if one not in known]
    problems.extend(f"language {one!r} does not ship: use {', '.join(LANGUAGES)}" for one in unknown)
    return tuple(known)


def _phrases(part: str, given: Any, problems: list[str]) -> dict[str, tuple[str, ...]]:
    if not isinstance(given, dict):
        problems.append(f"{part} must be a table: [{part}]")
        return {}
    kinds: dict[str, tuple[str, ...]] = {}
    for kind, texts in given.items():
        if kind not in KINDS:
            problems.append(f"{part}.{kind} is no kind of cue: use {', '.join(KINDS)}")
        elif not isinstance(texts, list):
            problems.append(f'{part}.{kind} must be a list of phrases, such as ["price book"]')
        else:
            kinds[kind] = tuple(str(one).strip().lower() for one in texts)
            problems.extend(f"{part}.{kind}: {problem}" for one in texts if (problem := phrase_problem(one)))
    return kinds


def phrase_problem(phrase: object) -> str:
    """What is wrong with *phrase* as a cue; empty where nothing is."""
    if not isinstance(phrase, str):
        return f"{phrase!r} is no text"
    if len(phrase) > MAX_PHRASE_CHARACTERS:
        return f"{phrase[:40]!r}… has more than {MAX_PHRASE_CHARACTERS} characters"
    words = words_of(phrase)
    if not words:
        return f"{phrase!r} holds no word"
    if len("".join(words)) == 1 and len(phrase.strip()) > 1:
        return f"{phrase!r} would be seen in every {words[0]!r}: signs are not compared"
    return ""


def problem_in(text: str) -> str:
    """What is wrong with *text* as a file of cues; empty where nothing is."""
    try:
        parse(text)
    except InvalidCues as error:
        return str(error)
    return ""


@lru_cache(maxsize=256)
def cues_of(files: tuple[str, ...]) -> Cues:
    """The cues where *files* hold, the least specific first: languages add up, then each file adds and removes.

    The same files give the same object. Raises `InvalidCues`.
    """
    changes = [parse(text) for text in files]
    cues = spoken(dict.fromkeys(language for one in changes for language in one.languages)) if changes else ENGLISH
    for one in changes:
        cues = cues.extended(**one.add).without(**one.remove)
    return cues


def as_table(cues: Cues, kinds: Iterable[str] = KINDS) -> dict[str, list[str]]:
    """*cues* by kind, for showing."""
    return {kind: list(getattr(cues, kind)) for kind in kinds}

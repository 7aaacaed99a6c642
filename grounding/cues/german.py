"""German cues, for workspaces that choose them."""

from __future__ import annotations

from grounding.cues.kinds import Cues, phrases

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

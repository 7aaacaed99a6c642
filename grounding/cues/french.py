"""French cues, for workspaces that choose them. Accents make no difference; "l'" and the like are words."""

from __future__ import annotations

from grounding.cues.kinds import Cues, phrases

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

"""English cues: the ones that every workspace has."""

from __future__ import annotations

from grounding.cues.kinds import Cues, phrases

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

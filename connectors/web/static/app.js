// The page: signing in, the open conversation, and its events.

import { Failure, call, follow } from "./api.js";
import { Composer } from "./composer.js";
import { Conversations, newId } from "./conversations.js";
import { Files } from "./files.js";
import { Log } from "./log.js";
import { Outbox } from "./outbox.js";
import { build } from "./render.js";

const THEMES = ["auto", "light", "dark"];
const ANNOUNCED_CHARACTERS = 1500;
const COMMANDS_MS = 3_000;
const SEARCH_MS = 250;
const $ = (id) => document.getElementById(id);

let chat = null;

class Chat {
  constructor(session) {
    this.owner = `${session.workspace}.${session.person}`;
    this.ended = new AbortController();
    this.conversations = new Conversations(this.owner);
    this.waits = new Map(); // conversation → ids of the messages without an answer yet
    this.answered = new Set();
    this.drafts = new Map(); // conversation → its growing reply
    this.cursor = "";
    this.loading = 0;
    this.queuedEvents = null; // events during a load, which the loaded messages may not include; null: not loading
    const signedOut = () => leave("Your session has ended. Please sign in again.");
    this.log = new Log($("log"), $("newest"), {
      retry: (id) => this.outbox.retry(id),
      discard: (id) => (this.outbox.discard(id), this.log.remove(id)),
      suggest: (text) => this.post(text),
      mark: (item, mark) => this.mark(item, mark),
      open: (source) => this.openSection(source),
      edit: (question) => this.edit(question),
      again: (question) => this.post(question.text, question.files, question.ids),
    });
    this.editing = null; // the question that the next message replaces
    this.outbox = new Outbox(this.owner, {
      changed: (message) => this.showUnsent(message),
      taken: (message, answer) => this.taken(message, answer),
      signedOut,
    });
    composer.handlers.send = (text) => this.send(text);
    composer.handlers.stop = () => this.stop();
    composer.handlers.escape = () => this.editing && (this.edit(null), true);
    files.limits = session;
    $("who").textContent = `${session.name || "You"} · ${session.role} in ${session.workspace}`;
    $("workspace").replaceChildren(...session.workspaces.map((name) => new Option(name, name)));
    $("workspace").value = session.workspace;
    $("workspace-field").hidden = session.workspaces.length < 2;
    $("search").value = "";
    this.start(signedOut);
  }

  async start(signedOut) {
    await this.list();
    this.show();
    await this.load();
    this.readCommands();
    this.outbox.sendNow();
    follow(this.cursor, {
      event: (name, data) => this.event(name, data),
      state: (state, why) => this.connected(state === "open", why),
      signedOut,
    }, this.ended.signal);
  }

  end() {
    this.ended.abort();
    this.outbox.stop();
  }

  async list() {
    try {
      const loaded = await call("GET", "conversations");
      this.cursor ||= loaded.cursor;
      this.conversations.fill(loaded.conversations);
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (error.status === 401) return leave("Please sign in.");
      this.conversations.fill([]);
      this.connected(false, error.message);
    }
  }

  async search(words) {
    const query = (this.query = words.trim());
    try {
      const found = query && (await call("GET", `conversations?q=${encodeURIComponent(query)}`)).conversations;
      if (query !== this.query) return;
      this.conversations.found = found || null;
      this.show();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      say(`The search failed. ${error.message}`);
    }
  }

  /** Reads the commands. Repeats until there are some: the connectors may start after the page was opened. */
  async readCommands() {
    try {
      composer.commands = (await call("GET", "commands")).commands;
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
    }
    if (!composer.commands.length && !this.ended.signal.aborted) setTimeout(() => this.readCommands(), COMMANDS_MS);
  }

  get current() {
    return this.conversations.current;
  }

  show() {
    this.conversations.show($("conversations"), (id) => this.open(id));
    $("title").textContent = this.conversations.title;
    document.title = `${this.conversations.title} · Agent Runtime`;
    const isListed = this.conversations.isListed(this.current);
    $("rename").hidden = $("delete").hidden = !isListed;
  }

  async open(id) {
    this.conversations.open(id);
    this.edit(null);
    this.log.clear();
    toggleSide(false);
    this.show();
    composer.box.focus();
    await this.load();
  }

  async load() {
    const conversation = this.current;
    const number = ++this.loading;
    this.queuedEvents ??= [];
    this.log.hideWriting();
    try {
      const loaded = await call("GET", `messages?conversation=${encodeURIComponent(conversation)}`);
      if (number !== this.loading) return;
      this.cursor ||= loaded.cursor;
      this.log.fill(loaded.messages);
      for (const item of loaded.messages) if (item.by === "bot") this.markAnswered(item);
      for (const message of this.outbox.waiting) this.showUnsent(message);
      const draft = this.drafts.get(conversation);
      if (draft) this.log.grow({ ...draft, from: 0 });
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (error.status === 401) return leave("Please sign in.");
      if (number === this.loading) this.log.fail(`The conversation cannot be shown. ${error.message}`, () => this.load());
    }
    if (number !== this.loading) return;
    const events = this.queuedEvents;
    this.queuedEvents = null;
    for (const [name, data] of events) this.event(name, data);
    this.busy();
  }

  /** Sends the composer's text and files. Returns whether it did. */
  send(text) {
    if (files.busy) return say("A file is still being sent."), false;
    if (!text && !files.ready.length) return false;
    this.post(text, files.ready, this.editing?.ids);
    this.editing = null;
    $("editing").hidden = true;
    files.clear();
    return true;
  }

  post(text, attached = [], replaces = []) {
    for (const id of replaces) this.log.replace(id);
    this.showUnsent(this.outbox.add(this.current, text, attached, replaces));
    this.log.toEnd();
  }

  /** Puts *question*, the last one, into the composer to be edited. null ends editing. */
  edit(question) {
    if (!question && !this.editing) return files.clear();
    this.editing = question;
    $("editing").hidden = !question;
    composer.text = question?.text ?? "";
    files.fill(question?.files ?? []);
    composer.box.focus();
  }

  async stop() {
    if (!this.waits.get(this.current)?.size && !this.log.draft) return;
    const replyStarted = Boolean(this.log.draft); // then the answer itself shows that it was stopped
    const done = await this.act("POST", "stop", {}, "The answer could not be stopped.");
    if (done?.stopped && !replyStarted) notify("Stopped.");
  }

  async mark(item, mark) {
    const before = item.mark;
    this.log.mark(item.turn, mark);
    const done = await this.act("POST", "marks", { turn: item.turn, mark }, "The mark was not saved.");
    if (!done) this.log.mark(item.turn, before);
  }

  /** Sends a request about the open conversation. Returns null, and shows *failed* and the reason, if it fails. */
  async act(method, path, fields, failed) {
    try {
      return await call(method, path, { conversation: this.current, ...fields });
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      notify(`${failed} ${error.message}`);
      return null;
    }
  }

  async openSection({ source, heading }) {
    const body = $("section-body");
    $("section-title").textContent = source;
    $("section-heading").textContent = heading;
    body.textContent = "Loading…";
    $("section-dialog").showModal();
    try {
      const query = new URLSearchParams({ conversation: this.current, source, heading });
      body.replaceChildren(...build((await call("GET", `sections?${query}`)).nodes));
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      body.textContent = error.message;
    }
  }

  showUnsent(message) {
    if (message.conversation !== this.current) return;
    const { id, text, at, files: attached, conversation } = message;
    const state = message.refused ? "refused" : message.delayed ? "delayed" : "sending";
    const notes = { refused: `Not sent. ${message.refused}`, delayed: `Waits to be sent. ${message.delayed}`, sending: "Sending…" };
    this.log.put({ id, text, at, files: attached, conversation, by: "you", state, note: notes[state] });
    if (state === "refused") say(notes[state]);
  }

  taken(message, answer) {
    const conversation = message.conversation;
    if (answer.outcome === "stored") this.wait(conversation, message.id);
    if (conversation !== this.current) return;
    const ignored = answer.outcome === "ignored" ? { state: "ignored", note: "Not answered here." } : {};
    this.log.put({ ...answer.message, ...ignored });
    if (answer.outcome === "stored" && this.waits.get(conversation)?.has(message.id)) this.log.showWriting();
  }

  /** Expects an answer to the message, unless it has already arrived. */
  wait(conversation, id) {
    if (this.answered.has(id)) return;
    const waits = this.waits.get(conversation) ?? new Set();
    this.waits.set(conversation, waits.add(id));
    this.busy();
  }

  event(name, data) {
    if (name === "reset") return this.drafts.clear(), this.list().then(() => (this.show(), this.load()));
    if (this.queuedEvents) return this.queuedEvents.push([name, data]);
    if (name === "conversation") return this.conversations.put(data), this.show();
    if (name === "deleted") return this.forget(data.conversation);
    const here = data.conversation === this.current;
    if (name === "message") return this.showMessage(data, here);
    if (name === "draft") this.keepDraft(data);
    if (name === "settled") this.settle({ ...data, kind: "reply" });
    if (!here) return;
    if (name === "draft") this.log.grow(data);
    else if (name === "typing") this.log.showWriting();
    else if (name === "edited") this.log.put(data);
    else if (name === "removed") this.log.remove(data.id);
    else if (name === "marked") this.log.mark(data.turn, data.mark);
    else if (name === "settled") this.log.drop(), this.log.hideWriting();
    this.busy();
  }

  forget(id) {
    this.conversations.drop(id);
    if (id === this.current) return this.open(newId());
    this.show();
  }

  keepDraft({ conversation, answers, from, nodes }) {
    const known = this.drafts.get(conversation);
    const draft = known?.answers.join() === answers.join() ? known : { answers, nodes: [] };
    draft.nodes.splice(from, Infinity, ...nodes);
    this.drafts.set(conversation, draft);
  }

  showMessage(item, here) {
    if (item.by === "bot") {
      this.conversations.mark(item.conversation);
      this.show();
      this.settle(item);
    }
    if (here) {
      const element = this.log.put(item);
      if (item.by === "bot") {
        if (!this.waits.get(item.conversation)?.size) this.log.hideWriting();
        say(`${item.kind === "notice" ? "Notice" : "Answer"}: ${element.querySelector(".body").innerText.slice(0, ANNOUNCED_CHARACTERS)}`);
      }
    } else if (item.by === "you") {
      this.conversations.mark(item.conversation);
      this.show();
    }
    this.busy();
  }

  settle(item) {
    const draft = this.drafts.get(item.conversation);
    if (draft && (item.kind !== "notice" || item.answers.some((id) => draft.answers.includes(id)))) {
      this.drafts.delete(item.conversation);
    }
    this.markAnswered(item);
    // Only one turn runs at a time. If messages remain, the next turn shows "writing…" again.
    if (item.kind !== "notice") this.waits.get(item.conversation)?.clear();
  }

  markAnswered(item) {
    for (const id of item.answers) {
      this.waits.get(item.conversation)?.delete(id);
      this.answered.add(id);
    }
  }

  busy() {
    composer.busy = this.log.busy = Boolean(this.waits.get(this.current)?.size || this.log.draft);
    this.log.offer();
  }

  connected(open, why) {
    $("connection").textContent = open ? "" : `Reconnecting… ${why}`;
    $("connection").classList.toggle("lost", !open);
    if (!open) return;
    this.drafts.clear();
    this.log.drop();
    this.outbox.sendNow();
  }
}

const composer = new Composer(
  { form: $("composer"), box: $("message"), palette: $("palette"), stop: $("stop"), stopKey: $("stop-key") },
  { send() {}, stop() {}, escape() {}, commandsShown: (number) => say(`${number} commands. Choose with the arrow keys, accept with Tab.`) },
);

const files = new Files($("files"), {
  changed: () => composer.box.focus(),
  refused: (why) => notify(why),
});

/** Shows *text* for a while. Screen readers read it out. */
function notify(text) {
  $("notice").textContent = text;
  $("notice").hidden = false;
  clearTimeout(notify.timer);
  notify.timer = setTimeout(() => ($("notice").hidden = true), 6_000);
}

/** Makes screen readers read *text* out. */
function say(text) {
  $("announce").textContent = text;
}

function enter(session) {
  $("sign-in").hidden = true;
  $("chat").hidden = false;
  chat = new Chat(session);
  composer.box.focus();
}

function leave(why) {
  chat?.end();
  chat = null;
  $("log").replaceChildren();
  $("chat").hidden = true;
  $("sign-in").hidden = false;
  $("sign-in-error").textContent = why;
  document.title = "Sign in · Agent Runtime";
  $("token").focus();
}

/** Returns the token in a pasted text: an invite link or the token itself. */
function tokenIn(text) {
  return text.trim().split("#token=").pop();
}

async function signIn(token) {
  $("sign-in-error").textContent = "";
  if (!/^[\x21-\x7e]+$/.test(token)) return leave(token ? "This is not a token." : "Please paste your link or token.");
  try {
    const session = await call("POST", "session", {}, { Authorization: `Bearer ${token}` });
    $("token").value = "";
    chat?.end();
    enter(session);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    leave(error.status === 401 ? "This link or token is not valid, or no longer valid. Please ask for a new one." : error.message);
  }
}

async function changeWorkspace() {
  try {
    const session = await call("PUT", "session", { workspace: $("workspace").value });
    chat.end();
    enter(session);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    notify(error.message);
  }
}

async function deleteConversation() {
  const id = chat.current;
  const done = await chat.act("DELETE", "conversations", {}, "The conversation was not deleted.");
  if (done) chat.forget(id);
}

async function signOut() {
  const waiting = chat.outbox.waiting;
  if (waiting.length && !confirm("Some of your messages were not sent. Sign out and discard them?")) return;
  for (const { id } of waiting) chat.outbox.discard(id);
  composer.text = "";
  files.clear();
  chat.end();
  try {
    await call("DELETE", "session");
    leave("");
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    leave(error.status === 401 ? "" : `You may still be signed in. ${error.message}`);
  }
}

function toggleSide(open) {
  $("chat").classList.toggle("side-open", open);
  $("scrim").hidden = !open;
  $("stage").inert = open;
  $("open-side").setAttribute("aria-expanded", String(open));
  if (open) $("new").focus();
  else if ($("side").contains(document.activeElement)) $("open-side").focus();
}

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = `Theme: ${theme}`;
}

function listen() {
  $("sign-in-form").addEventListener("submit", (event) => (event.preventDefault(), signIn(tokenIn($("token").value))));
  window.addEventListener("hashchange", () => {
    const invited = takeInvite();
    if (invited) signIn(invited);
  });
  $("sign-out").addEventListener("click", signOut);
  $("workspace").addEventListener("change", changeWorkspace);
  $("new").addEventListener("click", () => chat.open(newId()));
  let waiting = 0;
  $("search").addEventListener("input", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => chat?.search($("search").value), SEARCH_MS);
  });
  $("rename").addEventListener("click", () => {
    $("rename-name").value = chat.conversations.title;
    $("rename-dialog").showModal();
    $("rename-name").select();
  });
  $("rename-form").addEventListener("submit", () => {
    const title = $("rename-name").value.trim();
    if (title) chat.act("PATCH", "conversations", { title }, "The conversation was not renamed.");
  });
  $("delete").addEventListener("click", () => $("delete-dialog").showModal());
  $("delete-form").addEventListener("submit", deleteConversation);
  for (const button of document.querySelectorAll("dialog .close")) {
    button.addEventListener("click", () => button.closest("dialog").close());
  }
  $("section-dialog").addEventListener("click", (event) => event.target === event.currentTarget && event.target.close());
  $("cancel-editing").addEventListener("click", () => chat.edit(null));
  $("attach").addEventListener("click", () => $("file").click());
  $("file").addEventListener("change", () => {
    files.take($("file").files, chat.current);
    $("file").value = "";
  });
  $("message").addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    files.take(event.clipboardData.files, chat.current);
  });
  $("stage").addEventListener("dragover", (event) => event.preventDefault());
  $("stage").addEventListener("drop", (event) => {
    event.preventDefault();
    files.take(event.dataTransfer.files, chat.current);
  });
  $("open-side").addEventListener("click", () => toggleSide(true));
  $("close-side").addEventListener("click", () => toggleSide(false));
  $("scrim").addEventListener("click", () => toggleSide(false));
  $("side").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || $("scrim").hidden) return;
    event.preventDefault();
    toggleSide(false);
  });
  $("theme").addEventListener("click", () => {
    const theme = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    localStorage.setItem("agent-runtime.theme", theme);
    applyTheme(theme);
  });
}

/** Returns the token of an invite link in the address bar, and removes it there. Empty if there is none. */
function takeInvite() {
  if (!location.hash.startsWith("#token=")) return "";
  const token = tokenIn(location.hash);
  history.replaceState(null, "", location.pathname);
  return token;
}

async function start() {
  const theme = localStorage.getItem("agent-runtime.theme");
  applyTheme(THEMES.includes(theme) ? theme : "auto");
  listen();
  const invited = takeInvite();
  if (invited) return signIn(invited);
  try {
    enter(await call("GET", "session"));
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    leave(error.status === 401 ? "" : error.message);
  }
}

start();

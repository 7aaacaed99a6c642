// The page: signing in, the open conversation, and what is told of it.

import { Failure, call, follow } from "./api.js";
import { Composer } from "./composer.js";
import { Conversations } from "./conversations.js";
import { Log } from "./log.js";
import { Outbox } from "./outbox.js";

const THEMES = ["auto", "light", "dark"];
const ANNOUNCED_CHARACTERS = 1500;
const COMMANDS_MS = 3_000;
const $ = (id) => document.getElementById(id);

let chat = null;

class Chat {
  constructor(session) {
    this.owner = `${session.workspace}.${session.person}`;
    this.ended = new AbortController();
    this.conversations = new Conversations(this.owner);
    this.waits = new Map(); // by conversation: ids of messages whose answer is still to come
    this.answered = new Set();
    this.drafts = new Map(); // by conversation: what there is of the reply that is being written
    this.cursor = "";
    this.loading = 0;
    this.held = null; // what came while a conversation was loaded, which may be missing in what was loaded
    const signedOut = () => leave("Your session has ended. Please sign in again.");
    this.log = new Log($("log"), $("newest"), {
      retry: (id) => this.outbox.retry(id),
      discard: (id) => (this.outbox.discard(id), this.log.remove(id)),
      suggest: (text) => this.send(text),
    });
    this.outbox = new Outbox(this.owner, {
      changed: (message) => this.showUnsent(message),
      taken: (message, answer) => this.taken(message, answer),
      signedOut,
    });
    composer.told.send = (text) => this.send(text);
    composer.told.stop = () => this.stop();
    $("who").textContent = `${session.name || "You"} · ${session.workspace} · ${session.role}`;
    this.show();
    this.start(signedOut);
  }

  async start(signedOut) {
    await this.load();
    this.readCommands();
    this.outbox.hurry();
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

  /** Commands are known once the connectors are up, which may be a moment after the page is. */
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
  }

  async open(id) {
    this.conversations.open(id);
    openSide(false);
    this.show();
    composer.box.focus();
    await this.load();
  }

  async load() {
    const conversation = this.current;
    const number = ++this.loading;
    this.held ??= [];
    this.log.unsign();
    try {
      const found = await call("GET", `messages?conversation=${encodeURIComponent(conversation)}`);
      if (number !== this.loading) return;
      this.cursor ||= found.cursor;
      this.log.fill(found.messages);
      for (const item of found.messages) if (item.by === "bot") this.heard(item);
      for (const message of this.outbox.waiting) this.showUnsent(message);
      const draft = this.drafts.get(conversation);
      if (draft) this.log.grow({ ...draft, from: 0 });
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (error.status === 401) return leave("Please sign in.");
      if (number === this.loading) this.log.fail(`The conversation cannot be shown. ${error.message}`, () => this.load());
    }
    if (number !== this.loading) return;
    const held = this.held;
    this.held = null;
    for (const [name, data] of held) this.event(name, data);
    this.busy();
  }

  send(text) {
    this.showUnsent(this.outbox.add(this.current, text));
    this.log.toEnd();
  }

  stop() {
    if (!this.waits.get(this.current)?.size && !this.log.draft) return;
    this.outbox.add(this.current, "/stop");
  }

  showUnsent(message) {
    if (message.conversation !== this.current) return;
    const { id, text, at } = message;
    const state = message.refused ? "refused" : message.delayed ? "delayed" : "sending";
    const notes = { refused: `Not sent. ${message.refused}`, delayed: `Waits to be sent. ${message.delayed}`, sending: "Sending…" };
    this.log.put({ id, text, at, by: "you", state, note: notes[state] });
    if (state === "refused") say(notes[state]);
  }

  taken(message, answer) {
    const conversation = message.conversation;
    if (answer.outcome === "stored") this.wait(conversation, message.id);
    if (conversation !== this.current) return;
    const ignored = answer.outcome === "ignored" ? { state: "ignored", note: "Not answered here." } : {};
    this.log.put({ ...answer.message, ...ignored });
    if (answer.outcome === "stored" && this.waits.get(conversation)?.has(message.id)) this.log.sign();
  }

  /** An answer to the message is to be expected, unless it came before we knew. */
  wait(conversation, id) {
    if (this.answered.has(id)) return;
    const waits = this.waits.get(conversation) ?? new Set();
    this.waits.set(conversation, waits.add(id));
    this.busy();
  }

  event(name, data) {
    if (name === "reset") return this.drafts.clear(), this.load();
    if (this.held) return this.held.push([name, data]);
    const here = data.conversation === this.current;
    if (name === "message") return this.came(data, here);
    if (name === "draft") this.keepDraft(data);
    if (name === "settled") this.settle({ ...data, kind: "reply" });
    if (!here) return;
    if (name === "draft") this.log.grow(data);
    else if (name === "typing") this.log.sign();
    else if (name === "edited") this.log.put(data);
    else if (name === "removed") this.log.remove(data.id);
    else if (name === "settled") this.log.drop(), this.log.unsign();
    this.busy();
  }

  keepDraft({ conversation, answers, from, nodes }) {
    const known = this.drafts.get(conversation);
    const draft = known?.answers.join() === answers.join() ? known : { answers, nodes: [] };
    draft.nodes.splice(from, Infinity, ...nodes);
    this.drafts.set(conversation, draft);
  }

  came(item, here) {
    if (item.by === "bot") {
      this.conversations.mark(item.conversation);
      this.show();
      this.settle(item);
    }
    if (here) {
      const made = this.log.put(item);
      if (item.by === "bot") {
        if (!this.waits.get(item.conversation)?.size) this.log.unsign();
        say(`${item.kind === "notice" ? "Notice" : "Answer"}: ${made.querySelector(".body").innerText.slice(0, ANNOUNCED_CHARACTERS)}`);
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
    this.heard(item);
    // One turn at a time: what is left goes on with a sign of its own.
    if (item.kind !== "notice") this.waits.get(item.conversation)?.clear();
  }

  heard(item) {
    for (const id of item.answers) {
      this.waits.get(item.conversation)?.delete(id);
      this.answered.add(id);
    }
  }

  busy() {
    composer.busy = Boolean(this.waits.get(this.current)?.size || this.log.draft);
  }

  connected(open, why) {
    $("connection").textContent = open ? "" : `Reconnecting… ${why}`;
    $("connection").classList.toggle("lost", !open);
    if (!open) return;
    this.drafts.clear();
    this.log.drop();
    this.outbox.hurry();
  }
}

const composer = new Composer(
  { form: $("composer"), box: $("message"), palette: $("palette"), stop: $("stop"), stopKey: $("stop-key") },
  { send() {}, stop() {}, listed: (number) => say(`${number} commands. Arrow keys choose, Tab takes one.`) },
);

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
  $("name").value = localStorage.getItem("agent-runtime.name") ?? "";
  $("workspace").value = localStorage.getItem("agent-runtime.workspace") ?? "";
  document.title = "Sign in · Agent Runtime";
  $("token").focus();
}

async function signIn(event) {
  event.preventDefault();
  const token = $("token").value.trim();
  const [name, workspace] = [$("name").value.trim(), $("workspace").value.trim()];
  $("sign-in-error").textContent = "";
  if (!/^[\x21-\x7e]+$/.test(token)) {
    $("sign-in-error").textContent = token ? "That is no token: it has other characters." : "Please enter a token.";
    return $("token").focus();
  }
  try {
    const session = await call("POST", "session", { name, workspace }, { Authorization: `Bearer ${token}` });
    $("token").value = "";
    localStorage.setItem("agent-runtime.name", name);
    localStorage.setItem("agent-runtime.workspace", workspace);
    enter(session);
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    $("sign-in-error").textContent = error.status === 401 ? "This token is not valid." : error.message;
    $(error.code === "unknown_workspace" ? "workspace" : "token").focus();
  }
}

async function signOut() {
  const waiting = chat.outbox.waiting;
  if (waiting.length && !confirm("Not everything that you wrote was sent. Sign out, and discard it?")) return;
  for (const { id } of waiting) chat.outbox.discard(id);
  composer.text = "";
  chat.end();
  try {
    await call("DELETE", "session");
    leave("");
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    leave(error.status === 401 ? "" : `You may still be signed in. ${error.message}`);
  }
}

function openSide(open) {
  $("chat").classList.toggle("side-open", open);
  $("scrim").hidden = !open;
  $("stage").inert = open;
  $("open-side").setAttribute("aria-expanded", String(open));
  if (open) $("new").focus();
  else if ($("side").contains(document.activeElement)) $("open-side").focus();
}

function wearTheme(theme) {
  document.documentElement.dataset.theme = theme;
  $("theme").textContent = `Theme: ${theme}`;
}

function listen() {
  $("sign-in-form").addEventListener("submit", signIn);
  $("sign-out").addEventListener("click", signOut);
  $("new").addEventListener("click", () => {
    chat.conversations.add(`Conversation ${chat.conversations.list.length + 1}`);
    chat.open(chat.conversations.current);
  });
  $("rename").addEventListener("click", () => {
    $("rename-name").value = chat.conversations.title;
    $("rename-dialog").showModal();
    $("rename-name").select();
  });
  $("rename-cancel").addEventListener("click", () => $("rename-dialog").close());
  $("rename-form").addEventListener("submit", () => {
    const title = $("rename-name").value.trim();
    if (title) chat.conversations.rename(title);
    chat.show();
  });
  $("open-side").addEventListener("click", () => openSide(true));
  $("close-side").addEventListener("click", () => openSide(false));
  $("scrim").addEventListener("click", () => openSide(false));
  $("side").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || $("scrim").hidden) return;
    event.preventDefault();
    openSide(false);
  });
  $("theme").addEventListener("click", () => {
    const theme = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    localStorage.setItem("agent-runtime.theme", theme);
    wearTheme(theme);
  });
}

async function begin() {
  const theme = localStorage.getItem("agent-runtime.theme");
  wearTheme(THEMES.includes(theme) ? theme : "auto");
  listen();
  try {
    enter(await call("GET", "session"));
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    leave(error.status === 401 ? "" : error.message);
  }
}

begin();

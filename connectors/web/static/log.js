// Shows the messages of the open conversation.

import { attached } from "./files.js";
import { build, copyButton } from "./render.js";

const NEAR_PX = 80;
const TYPING_MS = 6_000;

export class Log {
  /** handlers: retry(id), discard(id), suggest(text), mark(item, mark), open(source), edit(question),
   * again(question). */
  constructor(element, newest, handlers) {
    this.element = element;
    this.newest = newest;
    this.handlers = handlers;
    this.shown = new Map();
    this.items = new Map();
    this.draft = null;
    this.busy = false;
    this.follows = true;
    this.writing = writingSign();
    this.timer = 0;
    element.addEventListener("scroll", () => this.look());
    newest.addEventListener("click", () => this.toEnd());
  }

  /** Removes all messages. */
  clear() {
    this.shown.clear();
    this.items.clear();
    this.draft = null;
    this.element.replaceChildren();
  }

  /** Replaces all messages with *items*. */
  fill(items) {
    this.clear();
    if (!items.length) this.element.append(welcome(this.handlers.suggest));
    for (const item of items) this.put(item);
    this.toEnd();
  }

  /** Shows an error instead of the messages, with a button that calls *again*. */
  fail(text, again) {
    this.clear();
    const problem = document.createElement("div");
    problem.className = "empty";
    problem.setAttribute("role", "alert");
    const paragraph = document.createElement("p");
    paragraph.textContent = text;
    problem.append(paragraph, button("Try again", again));
    this.element.append(problem);
  }

  /** Adds *item*, or updates it. */
  put(item) {
    this.element.querySelector(".empty")?.remove();
    const node = item.by === "you" ? personMessage(item, this.handlers) : botMessage(item, this.handlers);
    const existing = this.shown.get(item.id);
    const draftElement = this.draft && answers(item, this.draft.answers) ? this.draft.element : null;
    if (draftElement) this.draft = null;
    if (existing) existing.replaceWith(node);
    else if (draftElement) draftElement.replaceWith(node);
    else this.element.insertBefore(node, this.end);
    if (existing) draftElement?.remove();
    this.shown.set(item.id, node);
    this.items.set(item.id, item);
    this.offer();
    this.keepUp();
    return node;
  }

  remove(id) {
    this.shown.get(id)?.remove();
    this.shown.delete(id);
    this.items.delete(id);
    this.offer();
  }

  /** Removes a message that another one replaces, and its answers. */
  replace(id) {
    for (const item of [...this.items.values()]) if (item.id === id || item.answers?.includes(id)) this.remove(item.id);
  }

  /** Sets the person's mark of a turn's answer. */
  mark(turn, mark) {
    for (const item of this.items.values()) {
      if (item.turn !== turn) continue;
      item.mark = mark;
      for (const thumb of this.shown.get(item.id).querySelectorAll(".mark")) {
        thumb.setAttribute("aria-pressed", String(thumb.value === mark));
      }
    }
  }

  /** Shows buttons to edit the last question and to answer it again, unless an answer is being written. */
  offer() {
    const question = this.busy ? null : this.question();
    const existing = this.element.querySelector(".again");
    if (existing && question && existing.dataset.ids === question.ids.join()) return; // keeps the focus
    existing?.remove();
    if (!question) return;
    const row = document.createElement("div");
    row.className = "again";
    row.dataset.ids = question.ids.join();
    row.append(button("Edit", () => this.handlers.edit(question)), button("Answer again", () => this.handlers.again(question)));
    this.shown.get(question.ids.at(-1)).append(row);
  }

  /** Returns the last question: its text, its files and the ids of its messages. One answer may answer several messages.
   * null if the last message cannot be edited. */
  question() {
    const all = [...this.items.values()];
    const last = all.findLast((item) => item.by === "you");
    if (!last || last.state || last.text.startsWith("/")) return null;
    const answer = all.findLast((item) => item.by === "bot" && item.kind !== "notice" && item.answers.includes(last.id));
    const parts = all.filter((item) => item === last || (item.by === "you" && answer?.answers.includes(item.id)));
    return {
      ids: parts.map((item) => item.id),
      text: parts.map((item) => item.text).filter(Boolean).join("\n\n"),
      files: parts.flatMap((item) => item.files ?? []),
    };
  }

  has(id) {
    return this.shown.has(id);
  }

  /** Updates the growing reply: *nodes* replace its top-level elements from index *from* on. */
  grow({ answers: to, from, nodes }) {
    if (!this.draft || this.draft.answers.join() !== to.join()) {
      this.draft?.element.remove();
      const node = message("bot", "Assistant", "");
      node.classList.add("growing");
      this.draft = { answers: to, element: node };
      this.element.insertBefore(node, this.writing.parentNode ? this.writing : null);
    }
    const body = this.draft.element.querySelector(".body");
    while (body.childNodes.length > from) body.lastChild.remove();
    body.append(...build(nodes));
    this.showWriting();
  }

  /** Removes the growing reply. If it still grows, the server sends all of it again. */
  drop() {
    this.draft?.element.remove();
    this.draft = null;
  }

  /** Shows that an answer is being written. */
  showWriting() {
    this.element.querySelector(".empty")?.remove();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.hideWriting(), TYPING_MS);
    if (this.element.lastChild !== this.writing) this.element.append(this.writing);
    this.keepUp();
  }

  hideWriting() {
    clearTimeout(this.timer);
    this.writing.remove();
  }

  get end() {
    return this.draft?.element ?? (this.writing.parentNode ? this.writing : null);
  }

  toEnd() {
    this.follows = true;
    this.keepUp();
  }

  keepUp() {
    if (this.follows) this.element.scrollTop = this.element.scrollHeight;
    this.look();
  }

  look() {
    const { scrollTop, scrollHeight, clientHeight } = this.element;
    this.follows = scrollHeight - scrollTop - clientHeight < NEAR_PX;
    this.newest.hidden = this.follows;
  }
}

function answers(item, to) {
  return item.by === "bot" && (item.kind !== "notice" || item.answers.some((id) => to.includes(id)));
}

function message(by, author, at) {
  const node = document.createElement("article");
  node.className = `message ${by}`;
  const head = document.createElement("header");
  const name = document.createElement("h2");
  name.className = "author";
  name.textContent = author;
  head.append(name);
  const shown = clock(at);
  if (shown) {
    const time = document.createElement("time");
    time.dateTime = at;
    time.textContent = shown;
    head.append(time);
  }
  node.setAttribute("aria-label", shown ? `${author}, ${shown}` : author);
  const body = document.createElement("div");
  body.className = "body";
  node.append(head, body);
  return node;
}

function personMessage(item, handlers) {
  const node = message("you", "You", item.at);
  const body = node.querySelector(".body");
  if (item.text) body.append(...build(item.nodes ?? [item.text]));
  else body.remove();
  if (item.files?.length) node.append(attached(item.files, item.conversation));
  if (item.state) {
    const foot = document.createElement("footer");
    foot.className = item.state === "refused" ? "problem" : "hint";
    const why = document.createElement("span");
    why.textContent = item.note;
    foot.append(why);
    if (item.state === "refused") {
      foot.append(button("Try again", () => handlers.retry(item.id)), button("Discard", () => handlers.discard(item.id)));
    }
    node.append(foot);
  }
  return node;
}

function botMessage(item, handlers) {
  const node = message("bot", item.kind === "notice" ? "Notice" : "Assistant", item.at);
  node.classList.add(item.kind);
  node.querySelector(".body").append(...build(item.nodes));
  const foot = document.createElement("footer");
  if (item.stopped) foot.append(stopped());
  if (item.sources.length) foot.append(sources(item.sources, handlers));
  if (item.degraded.length) foot.append(degraded(item.degraded));
  if (item.kind !== "notice") foot.append(copyButton("Copy the answer", () => item.text));
  if (item.kind === "reply" && item.turn) {
    foot.append(thumb("good", "Good answer", item, handlers), thumb("bad", "Bad answer", item, handlers));
  }
  if (foot.childNodes.length) node.append(foot);
  return node;
}

function stopped() {
  const note = document.createElement("p");
  note.className = "hint stopped";
  note.textContent = "Stopped.";
  return note;
}

function sources(passages, handlers) {
  const list = document.createElement("ul");
  const part = document.createElement("div");
  part.className = "sources";
  const label = document.createElement("h3");
  label.textContent = passages.length > 1 ? "Sources" : "Source";
  for (const { source, heading } of passages) {
    const row = document.createElement("li");
    const chip = button(heading ? `${source} › ${heading}` : source, () => handlers.open({ source, heading }));
    chip.title = "Show this passage";
    row.append(chip);
    list.append(row);
  }
  part.append(label, list);
  return part;
}

const MISSING = {
  "attachments blind_model": "the pictures, which this model cannot see",
  "attachments no_transcription": "the voice message, because no transcription model is set",
  "attachments too_many": "some files: there were too many",
  "attachments unreadable": "a file that cannot be read",
};

function degraded(parts) {
  const note = document.createElement("p");
  note.className = "degraded";
  const readable = (words) => words.replaceAll("_", " ");
  const missing = parts.map(({ block, why }) => MISSING[`${block} ${why}`] ?? `${readable(block)} (${readable(why)})`);
  note.textContent = `Answered without ${missing.join(", ")}`;
  return note;
}

function button(label, pressed) {
  const node = document.createElement("button");
  node.type = "button";
  node.className = "quiet";
  node.textContent = label;
  node.addEventListener("click", pressed);
  return node;
}

// A drawing, because not every machine has a font with emoji.
const THUMB = "M6 9v8H3V9h3zm0 0 4-6c1.2 0 2 .9 2 2.1L11.5 8H16c1 0 1.7.9 1.5 1.9l-1.2 5.6c-.2.9-1 1.5-1.9 1.5H6";

function thumb(mark, label, item, handlers) {
  const node = button("", () => handlers.mark(item, item.mark === mark ? null : mark));
  node.value = mark;
  node.setAttribute("aria-pressed", String(item.mark === mark));
  node.classList.add("mark", mark);
  node.setAttribute("aria-label", label);
  node.title = label;
  const [drawing, path] = ["svg", "path"].map((name) => document.createElementNS("http://www.w3.org/2000/svg", name));
  drawing.setAttribute("viewBox", "0 0 20 20");
  drawing.setAttribute("aria-hidden", "true");
  path.setAttribute("d", THUMB);
  drawing.append(path);
  node.append(drawing);
  return node;
}

function writingSign() {
  const sign = document.createElement("p");
  sign.className = "writing";
  const dots = document.createElement("span");
  dots.className = "dots";
  dots.setAttribute("aria-hidden", "true");
  dots.append(...["", "", ""].map(() => document.createElement("i")));
  sign.append(dots, "writing…");
  return sign;
}

function welcome(suggest) {
  const empty = document.createElement("div");
  empty.className = "empty";
  const title = document.createElement("h2");
  title.textContent = "What would you like to know?";
  const text = document.createElement("p");
  text.textContent = "Ask about the documents of this workspace, or just talk. Its sources are listed below each answer.";
  const row = document.createElement("div");
  row.className = "row";
  for (const question of ["What is in your documents?", "/help"]) row.append(button(question, () => suggest(question)));
  empty.append(title, text, row);
  return empty;
}

function clock(at) {
  const time = new Date(at);
  if (Number.isNaN(time.valueOf())) return "";
  const today = time.toDateString() === new Date().toDateString();
  const short = { hour: "2-digit", minute: "2-digit" };
  return today ? time.toLocaleTimeString([], short) : time.toLocaleString([], { day: "numeric", month: "short", ...short });
}

// The messages of the open conversation, as people see them.

import { attached } from "./files.js";
import { build, copyButton } from "./render.js";

const NEAR_PX = 80;
const TYPING_MS = 6_000;

export class Log {
  /** told.retry(id), told.discard(id), told.suggest(text), told.mark(item, mark), told.open(source, opener),
   * told.edit(question), told.again(question). */
  constructor(element, newest, told) {
    this.element = element;
    this.newest = newest;
    this.told = told;
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

  /** Shows nothing, until there is something to show. */
  clear() {
    this.shown.clear();
    this.items.clear();
    this.draft = null;
    this.element.replaceChildren();
  }

  /** Shows *items* and nothing else. */
  fill(items) {
    this.clear();
    if (!items.length) this.element.append(welcome(this.told.suggest));
    for (const item of items) this.put(item);
    this.toEnd();
  }

  /** Says why there is nothing to see; *again* is done on request. */
  fail(text, again) {
    this.clear();
    const problem = document.createElement("div");
    problem.className = "empty";
    problem.setAttribute("role", "alert");
    const said = document.createElement("p");
    said.textContent = text;
    problem.append(said, button("Try again", again));
    this.element.append(problem);
  }

  /** Adds *item*, or gives it the form that it has now. */
  put(item) {
    this.element.querySelector(".empty")?.remove();
    const made = item.by === "you" ? yours(item, this.told) : theirs(item, this.told);
    const known = this.shown.get(item.id);
    const grown = this.draft && answers(item, this.draft.answers) ? this.draft.element : null;
    if (grown) this.draft = null;
    if (known) known.replaceWith(made);
    else if (grown) grown.replaceWith(made);
    else this.element.insertBefore(made, this.end);
    if (known) grown?.remove();
    this.shown.set(item.id, made);
    this.items.set(item.id, item);
    this.offer();
    this.keepUp();
    return made;
  }

  remove(id) {
    this.shown.get(id)?.remove();
    this.shown.delete(id);
    this.items.delete(id);
    this.offer();
  }

  /** Takes a message away with what answered it: another one goes in its place. */
  replace(id) {
    for (const item of [...this.items.values()]) if (item.id === id || item.answers?.includes(id)) this.remove(item.id);
  }

  /** The person thinks otherwise of the answer of a turn. */
  mark(turn, mark) {
    for (const item of this.items.values()) {
      if (item.turn !== turn) continue;
      item.mark = mark;
      for (const one of this.shown.get(item.id).querySelectorAll(".mark")) {
        one.setAttribute("aria-pressed", String(one.value === mark));
      }
    }
  }

  /** Offers to change the last question, and to have it answered again, while no answer is being written. */
  offer() {
    const question = this.busy ? null : this.question();
    const known = this.element.querySelector(".again");
    if (known && question && known.dataset.ids === question.ids.join()) return; // or it would lose the focus
    known?.remove();
    if (!question) return;
    const row = document.createElement("div");
    row.className = "again";
    row.dataset.ids = question.ids.join();
    row.append(button("Edit", () => this.told.edit(question)), button("Answer again", () => this.told.again(question)));
    this.shown.get(question.ids.at(-1)).append(row);
  }

  /** The last question: what it says, its files, and the ids of its messages, which one answer may have answered. */
  question() {
    const all = [...this.items.values()];
    const last = all.findLast((item) => item.by === "you");
    if (!last || last.state || last.text.startsWith("/")) return null;
    const answer = all.findLast((item) => item.by === "bot" && item.kind !== "notice" && item.answers.includes(last.id));
    const asked = all.filter((item) => item === last || (item.by === "you" && answer?.answers.includes(item.id)));
    return {
      ids: asked.map((item) => item.id),
      text: asked.map((item) => item.text).filter(Boolean).join("\n\n"),
      files: asked.flatMap((item) => item.files ?? []),
    };
  }

  has(id) {
    return this.shown.has(id);
  }

  /** A reply that is being written: its elements from one on. */
  grow({ answers: to, from, nodes }) {
    if (!this.draft || this.draft.answers.join() !== to.join()) {
      this.draft?.element.remove();
      const made = message("bot", "Assistant", "");
      made.classList.add("growing");
      this.draft = { answers: to, element: made };
      this.element.insertBefore(made, this.writing.parentNode ? this.writing : null);
    }
    const body = this.draft.element.querySelector(".body");
    while (body.childNodes.length > from) body.lastChild.remove();
    body.append(...build(nodes));
    this.sign();
  }

  /** Forgets the reply that is being written; it comes whole if it is still going on. */
  drop() {
    this.draft?.element.remove();
    this.draft = null;
  }

  /** Shows that an answer is on its way. */
  sign() {
    this.element.querySelector(".empty")?.remove();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.unsign(), TYPING_MS);
    if (this.element.lastChild !== this.writing) this.element.append(this.writing);
    this.keepUp();
  }

  unsign() {
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
  const made = document.createElement("article");
  made.className = `message ${by}`;
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
  made.setAttribute("aria-label", shown ? `${author}, ${shown}` : author);
  const body = document.createElement("div");
  body.className = "body";
  made.append(head, body);
  return made;
}

function yours(item, told) {
  const made = message("you", "You", item.at);
  const body = made.querySelector(".body");
  if (item.text) body.append(...build(item.nodes ?? [item.text]));
  else body.remove();
  if (item.files?.length) made.append(attached(item.files, item.conversation));
  if (item.state) {
    const foot = document.createElement("footer");
    foot.className = item.state === "refused" ? "problem" : "hint";
    const why = document.createElement("span");
    why.textContent = item.note;
    foot.append(why);
    if (item.state === "refused") {
      foot.append(button("Try again", () => told.retry(item.id)), button("Discard", () => told.discard(item.id)));
    }
    made.append(foot);
  }
  return made;
}

function theirs(item, told) {
  const made = message("bot", item.kind === "notice" ? "Notice" : "Assistant", item.at);
  made.classList.add(item.kind);
  made.querySelector(".body").append(...build(item.nodes));
  const foot = document.createElement("footer");
  if (item.stopped) foot.append(stopped());
  if (item.sources.length) foot.append(sources(item.sources, told));
  if (item.degraded.length) foot.append(degraded(item.degraded));
  if (item.kind !== "notice") foot.append(copyButton("Copy the answer", () => item.text));
  if (item.kind === "reply" && item.turn) {
    foot.append(thumb("good", "Good answer", item, told), thumb("bad", "Bad answer", item, told));
  }
  if (foot.childNodes.length) made.append(foot);
  return made;
}

function stopped() {
  const note = document.createElement("p");
  note.className = "hint stopped";
  note.textContent = "Stopped.";
  return note;
}

function sources(found, told) {
  const list = document.createElement("ul");
  const part = document.createElement("div");
  part.className = "sources";
  const label = document.createElement("h3");
  label.textContent = found.length > 1 ? "Sources" : "Source";
  for (const { source, heading } of found) {
    const row = document.createElement("li");
    const chip = button(heading ? `${source} › ${heading}` : source, () => told.open({ source, heading }));
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
  const plain = (words) => words.replaceAll("_", " ");
  const named = parts.map(({ block, why }) => MISSING[`${block} ${why}`] ?? `${plain(block)} (${plain(why)})`);
  note.textContent = `Answered without ${named.join(", ")}`;
  return note;
}

function button(label, pressed) {
  const made = document.createElement("button");
  made.type = "button";
  made.className = "quiet";
  made.textContent = label;
  made.addEventListener("click", pressed);
  return made;
}

// Drawn, since not every machine has a font with emoji.
const THUMB = "M6 9v8H3V9h3zm0 0 4-6c1.2 0 2 .9 2 2.1L11.5 8H16c1 0 1.7.9 1.5 1.9l-1.2 5.6c-.2.9-1 1.5-1.9 1.5H6";

function thumb(mark, label, item, told) {
  const made = button("", () => told.mark(item, item.mark === mark ? null : mark));
  made.value = mark;
  made.setAttribute("aria-pressed", String(item.mark === mark));
  made.classList.add("mark", mark);
  made.setAttribute("aria-label", label);
  made.title = label;
  const [drawing, path] = ["svg", "path"].map((name) => document.createElementNS("http://www.w3.org/2000/svg", name));
  drawing.setAttribute("viewBox", "0 0 20 20");
  drawing.setAttribute("aria-hidden", "true");
  path.setAttribute("d", THUMB);
  drawing.append(path);
  made.append(drawing);
  return made;
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

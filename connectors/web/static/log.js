// The messages of the open conversation, as people see them.

import { build, copyButton } from "./render.js";

const NEAR_PX = 80;
const TYPING_MS = 6_000;

export class Log {
  /** told.retry(id), told.discard(id), told.suggest(text). */
  constructor(element, newest, told) {
    this.element = element;
    this.newest = newest;
    this.told = told;
    this.shown = new Map();
    this.draft = null;
    this.follows = true;
    this.writing = writingSign();
    this.timer = 0;
    element.addEventListener("scroll", () => this.look());
    newest.addEventListener("click", () => this.toEnd());
  }

  /** Shows *items* and nothing else. */
  fill(items) {
    this.shown.clear();
    this.draft = null;
    this.element.replaceChildren();
    if (!items.length) this.element.append(welcome(this.told.suggest));
    for (const item of items) this.put(item);
    this.toEnd();
  }

  /** Says why there is nothing to see; *again* is done on request. */
  fail(text, again) {
    this.shown.clear();
    this.draft = null;
    const problem = document.createElement("div");
    problem.className = "empty";
    problem.setAttribute("role", "alert");
    const said = document.createElement("p");
    said.textContent = text;
    problem.append(said, button("Try again", again));
    this.element.replaceChildren(problem);
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
    this.keepUp();
    return made;
  }

  remove(id) {
    this.shown.get(id)?.remove();
    this.shown.delete(id);
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
  made.querySelector(".body").textContent = item.text;
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
  if (item.sources.length) foot.append(sources(item.sources));
  if (item.degraded.length) foot.append(degraded(item.degraded));
  if (item.kind !== "notice") foot.append(copyButton("Copy the answer", () => item.text));
  if (item.kind === "reply" && item.turn) {
    foot.append(mark("up", "Mark as good", () => told.suggest(`/good ${item.turn}`)));
    foot.append(mark("down", "Mark as bad", () => told.suggest(`/bad ${item.turn}`)));
  }
  if (foot.childNodes.length) made.append(foot);
  return made;
}

function sources(found) {
  const list = document.createElement("ul");
  const part = document.createElement("div");
  part.className = "sources";
  const label = document.createElement("h3");
  label.textContent = found.length > 1 ? "Sources" : "Source";
  for (const { source, heading } of found) {
    const row = document.createElement("li");
    row.textContent = heading ? `${source} › ${heading}` : source;
    list.append(row);
  }
  part.append(label, list);
  return part;
}

function degraded(parts) {
  const note = document.createElement("p");
  note.className = "degraded";
  const named = parts.map(({ block, why }) => `${block.replaceAll("_", " ")} (${why.replaceAll("_", " ")})`);
  note.textContent = `Answered without: ${named.join(", ")}`;
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

function mark(way, label, pressed) {
  const made = button("", pressed);
  made.classList.add("mark", way);
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
  text.textContent = "Ask about the documents of this workspace, or just talk. What the bot has looked up stands below its answer.";
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

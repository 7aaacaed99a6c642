// The signed-in person's list of conversations, and which one is open in this browser.

export class Conversations {
  constructor(owner) {
    this.key = `agent-runtime.current.${owner}`;
    this.list = [];
    this.found = null; // the results of a search; null: all conversations are shown
    this.unread = new Set();
    this.current = localStorage.getItem(this.key) ?? "";
  }

  /** Sets the list. The open conversation stays open if it is in the list, else the newest is opened. */
  fill(list) {
    this.list = list;
    if (!this.isListed(this.current)) this.current = list[0]?.conversation ?? newId();
  }

  isListed(id) {
    return this.list.some((entry) => entry.conversation === id);
  }

  get title() {
    return this.list.find((entry) => entry.conversation === this.current)?.title ?? "New conversation";
  }

  open(id) {
    this.current = id;
    this.unread.delete(id);
    localStorage.setItem(this.key, id);
  }

  /** Adds or updates a conversation: it is new, was renamed, or has a new message. */
  put(entry) {
    this.list = [entry, ...this.list.filter(({ conversation }) => conversation !== entry.conversation)];
    this.list.sort((a, b) => b.at.localeCompare(a.at));
  }

  drop(id) {
    this.list = this.list.filter(({ conversation }) => conversation !== id);
    this.found = this.found?.filter(({ conversation }) => conversation !== id) ?? null;
    this.unread.delete(id);
  }

  /** Marks a conversation as unread, unless it is open. */
  mark(id) {
    if (id !== this.current) this.unread.add(id);
  }

  /** Fills *element* with a button for each conversation, which calls opened(id). */
  show(element, opened) {
    const rows = (this.found ?? this.list).map((entry) => this.row(entry, opened));
    if (!rows.length && this.found) {
      const none = document.createElement("li");
      none.className = "hint";
      none.textContent = "Nothing found.";
      rows.push(none);
    }
    element.replaceChildren(...rows);
  }

  row({ conversation, title }, opened) {
    const row = document.createElement("li");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = button.title = title;
    if (conversation === this.current) button.setAttribute("aria-current", "page");
    if (this.unread.has(conversation)) {
      button.classList.add("unread");
      const note = document.createElement("span");
      note.className = "sr-only";
      note.textContent = ", new messages";
      button.append(note);
    }
    button.addEventListener("click", () => opened(conversation));
    row.append(button);
    return row;
  }
}

export function newId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

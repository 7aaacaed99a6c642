// The conversations of this browser: their ids, the names that the person gave them, and which one is open.

const DEFAULT = { id: "main", title: "First conversation" };

export class Conversations {
  constructor(owner) {
    this.key = `agent-runtime.conversations.${owner}`;
    const stored = JSON.parse(localStorage.getItem(this.key) ?? "null");
    this.list = stored?.list?.length ? stored.list : [{ ...DEFAULT }];
    this.current = this.list.some((one) => one.id === stored?.current) ? stored.current : this.list[0].id;
    this.unread = new Set();
  }

  get title() {
    return this.list.find((one) => one.id === this.current).title;
  }

  open(id) {
    this.current = id;
    this.unread.delete(id);
    this.store();
  }

  add(title) {
    const word = title.toLowerCase().normalize("NFKD").replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "");
    const random = Array.from(crypto.getRandomValues(new Uint8Array(4)), (byte) => byte.toString(16).padStart(2, "0"));
    const id = `${word.slice(0, 40) || "chat"}-${random.join("")}`;
    this.list.unshift({ id, title });
    this.open(id);
  }

  rename(title) {
    this.list.find((one) => one.id === this.current).title = title;
    this.store();
  }

  /** Says that something came in a conversation that is not open. One of another browser's appears in the list. */
  mark(id) {
    if (id === this.current) return;
    if (!this.list.some((one) => one.id === id)) {
      this.list.push({ id, title: id });
      this.store();
    }
    this.unread.add(id);
  }

  store() {
    localStorage.setItem(this.key, JSON.stringify({ list: this.list, current: this.current }));
  }

  /** Fills *list* with a button for each; opened(id) is called for the one that is chosen. */
  show(list, opened) {
    list.replaceChildren(
      ...this.list.map(({ id, title }) => {
        const row = document.createElement("li");
        const button = document.createElement("button");
        button.type = "button";
        button.textContent = title;
        if (id === this.current) button.setAttribute("aria-current", "page");
        if (this.unread.has(id)) {
          button.classList.add("unread");
          const note = document.createElement("span");
          note.className = "sr-only";
          note.textContent = ", new messages";
          button.append(note);
        }
        button.addEventListener("click", () => opened(id));
        row.append(button);
        return row;
      }),
    );
  }
}

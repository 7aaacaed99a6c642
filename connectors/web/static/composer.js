// The message box and the list of commands above it.

const LONGEST_PX = 220;

export class Composer {
  /** handlers: send(text) returns whether it sent the text; stop(); escape() returns whether it handled the key;
   * commandsShown(number). */
  constructor({ form, box, palette, stop, stopKey }, handlers) {
    Object.assign(this, { form, box, palette, stopButton: stop, stopKey, handlers });
    this.commands = [];
    this.chosen = 0;
    this.matching = [];
    this.closed = false;
    form.addEventListener("submit", (event) => (event.preventDefault(), this.submit()));
    stop.addEventListener("click", () => (handlers.stop(), box.focus()));
    box.addEventListener("input", () => (this.fit(), (this.closed = false), this.updatePalette()));
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("blur", (event) => palette.contains(event.relatedTarget) || this.hide());
    palette.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || event.defaultPrevented || document.querySelector("dialog[open]")) return;
      if (!handlers.escape()) handlers.stop();
    });
  }

  set text(text) {
    this.box.value = text;
    this.fit();
  }

  get text() {
    return this.box.value;
  }

  /** Whether an answer is being written, so that there is one to stop. */
  set busy(busy) {
    const focused = document.activeElement === this.stopButton;
    this.stopButton.hidden = this.stopKey.hidden = !busy;
    if (!busy && focused) this.box.focus();
  }

  submit() {
    if (!this.handlers.send(this.text.trim())) return;
    this.text = "";
    this.hide();
    this.box.focus();
  }

  key(event) {
    if (event.isComposing) return;
    const open = !this.palette.hidden;
    if (open && ["ArrowDown", "ArrowUp"].includes(event.key)) {
      event.preventDefault();
      const step = event.key === "ArrowDown" ? 1 : -1;
      this.choose((this.chosen + step + this.matching.length) % this.matching.length);
    } else if (open && (event.key === "Tab" || (event.key === "Enter" && !this.isCompleteCommand())) && !event.shiftKey) {
      event.preventDefault();
      this.take(this.matching[this.chosen]);
    } else if (open && event.key === "Escape") {
      event.preventDefault();
      this.closed = true;
      this.hide();
    } else if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.submit();
    }
  }

  /** Whether the text is a complete command, so that Enter sends it. */
  isCompleteCommand() {
    return this.commands.some((command) => `/${command.name}` === this.text.trim());
  }

  updatePalette() {
    const word = /^\/([A-Za-z0-9_-]*)$/.exec(this.text);
    this.matching = word ? this.commands.filter(({ name }) => name.startsWith(word[1].toLowerCase())) : [];
    if (!this.matching.length || this.closed) return this.hide();
    this.palette.replaceChildren(...this.matching.map((command, index) => this.option(command, index)));
    if (this.palette.hidden) this.handlers.commandsShown(this.matching.length);
    this.palette.hidden = false;
    this.choose(0);
  }

  option(command, index) {
    const row = document.createElement("li");
    row.id = `command-${index}`;
    row.setAttribute("role", "option");
    const name = document.createElement("b");
    name.textContent = `/${command.name}${command.arguments ? ` ${command.arguments}` : ""}`;
    const summary = document.createElement("span");
    summary.textContent = command.summary;
    row.append(name, summary);
    row.addEventListener("mousedown", (event) => (event.preventDefault(), this.take(command)));
    return row;
  }

  choose(index) {
    this.chosen = index;
    [...this.palette.children].forEach((row, at) => row.setAttribute("aria-selected", String(at === index)));
    this.palette.children[index].scrollIntoView({ block: "nearest" });
    this.box.setAttribute("aria-activedescendant", `command-${index}`);
  }

  take(command) {
    this.text = `/${command.name}${command.arguments ? " " : ""}`;
    this.hide();
    this.box.focus();
  }

  hide() {
    this.palette.hidden = true;
    this.box.removeAttribute("aria-activedescendant");
  }

  fit() {
    this.box.style.height = "auto";
    this.box.style.height = `${Math.min(this.box.scrollHeight, LONGEST_PX)}px`;
  }
}

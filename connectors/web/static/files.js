// Files attached to the next message. They are uploaded at once; the message names them when it is sent.

import { Failure, upload } from "./api.js";

const PICTURES = ["image/png", "image/jpeg", "image/gif", "image/webp"];

export class Files {
  /** handlers: changed(), refused(text). The limits are set later: max_file_bytes, max_files. */
  constructor(list, handlers) {
    this.list = list;
    this.handlers = handlers;
    this.limits = { max_file_bytes: 0, max_files: 0 };
    this.entries = [];
  }

  /** The uploaded files, in the form in which a message names them. */
  get ready() {
    return this.entries.filter((entry) => entry.file.id).map((entry) => entry.file);
  }

  get busy() {
    return this.entries.some((entry) => !entry.file.id);
  }

  /** Shows files that are already uploaded: those of an edited message. */
  fill(files) {
    this.clear();
    for (const file of files) this.add({ file: { ...file }, abort() {} });
  }

  clear() {
    for (const entry of this.entries) entry.abort();
    this.entries = [];
    this.show();
  }

  /** Uploads *chosen* (File objects) to *conversation*. */
  take(chosen, conversation) {
    for (const data of chosen) {
      if (this.entries.length >= this.limits.max_files) {
        return this.handlers.refused(`A message takes ${this.limits.max_files} files at most.`);
      }
      if (data.size > this.limits.max_file_bytes) {
        this.handlers.refused(`${data.name} is too large: the limit is ${size(this.limits.max_file_bytes)}.`);
        continue;
      }
      this.send(data, conversation);
    }
  }

  async send(data, conversation) {
    const cancel = new AbortController();
    const entry = {
      file: { name: data.name, media_type: data.type.split(";")[0], size: data.size },
      abort: () => cancel.abort(),
    };
    this.add(entry);
    try {
      const path = `files?conversation=${encodeURIComponent(conversation)}`;
      const stored = await upload(path, data, (part) => (entry.progress.value = part), cancel.signal);
      entry.file.id = stored.id;
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      this.entries = this.entries.filter((other) => other !== entry);
      if (!cancel.signal.aborted) this.handlers.refused(`${data.name} was not attached. ${error.message}`);
    }
    this.show();
  }

  add(entry) {
    entry.progress = document.createElement("progress");
    entry.progress.max = 1;
    entry.progress.value = 0;
    entry.progress.setAttribute("aria-label", `Sending ${entry.file.name}`);
    this.entries.push(entry);
    this.show();
  }

  remove(entry) {
    entry.abort();
    this.entries = this.entries.filter((other) => other !== entry);
    this.show();
  }

  show() {
    this.list.replaceChildren(...this.entries.map((entry) => this.row(entry)));
    this.list.hidden = !this.entries.length;
    this.handlers.changed();
  }

  row(entry) {
    const row = document.createElement("li");
    const name = document.createElement("span");
    name.className = "name";
    name.textContent = entry.file.name;
    const remove = document.createElement("button");
    remove.type = "button";
    remove.className = "quiet";
    remove.textContent = "×";
    remove.setAttribute("aria-label", `Remove ${entry.file.name}`);
    remove.addEventListener("click", () => this.remove(entry));
    const note = document.createElement("span");
    note.className = "hint";
    note.textContent = size(entry.file.size);
    row.append(name, entry.file.id ? note : entry.progress, remove);
    return row;
  }
}

/** Returns the list of a message's files. It shows pictures and links to all other files. */
export function attached(files, conversation) {
  const list = document.createElement("ul");
  list.className = "attached";
  for (const { id, name, media_type: type, size: bytes } of files) {
    const row = document.createElement("li");
    const link = document.createElement("a");
    const query = new URLSearchParams({ conversation, file: id, name, type });
    link.href = new URL(`../files?${query}`, import.meta.url).href;
    if (PICTURES.includes(type)) {
      const picture = document.createElement("img");
      picture.src = link.href;
      picture.alt = name;
      picture.loading = "lazy";
      link.target = "_blank";
      link.rel = "noopener";
      link.append(picture);
    } else {
      link.className = "file";
      link.download = name;
      link.textContent = `${name} · ${size(bytes)}`;
    }
    row.append(link);
    list.append(row);
  }
  return list;
}

function size(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 1_000_000 ? `${Math.round(bytes / 1000)} kB` : `${Number((bytes / 1_000_000).toFixed(1))} MB`;
}

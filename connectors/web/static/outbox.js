// What was written and is not taken yet. It outlives the page, and is sent in order, each message under an id of its
// own, so that one that was taken although nobody heard so is not taken twice.

import { Failure, call, pause } from "./api.js";
import { newId } from "./conversations.js";

export class Outbox {
  /** told.changed(message), told.taken(message, answer), told.signedOut(). */
  constructor(owner, told) {
    this.prefix = `agent-runtime.unsent.${owner}.`;
    this.told = told;
    this.attempt = 0;
    this.running = false;
    this.timer = 0;
    const kept = Object.keys(localStorage).filter((key) => key.startsWith(this.prefix));
    this.messages = new Map(kept.map((key) => [key.slice(this.prefix.length), JSON.parse(localStorage.getItem(key))]));
    window.addEventListener("online", () => this.hurry());
  }

  /** The messages that wait, oldest first. */
  get waiting() {
    return [...this.messages.values()].sort((a, b) => a.order - b.order);
  }

  /** *replaces*: the ids of the messages whose place it takes. */
  add(conversation, text, files = [], replaces = []) {
    const at = new Date().toISOString();
    const order = Date.now() + performance.now() / 1e6;
    const message = { id: newId(), conversation, text, files, replaces, at, order };
    this.keep(message);
    this.hurry();
    return message;
  }

  /** Offers a message that was refused again. */
  retry(id) {
    const message = this.waiting.find((one) => one.id === id);
    if (!message) return;
    delete message.refused;
    this.keep(message);
    this.told.changed(message);
    this.hurry();
  }

  discard(id) {
    this.messages.delete(id);
    localStorage.removeItem(this.prefix + id);
  }

  /** Tries now, e.g. because the connection is back. */
  hurry() {
    clearTimeout(this.timer);
    this.attempt = 0;
    this.run();
  }

  stop() {
    clearTimeout(this.timer);
    this.stopped = true;
  }

  keep(message) {
    this.messages.set(message.id, message);
    try {
      localStorage.setItem(this.prefix + message.id, JSON.stringify(message));
    } catch (error) {
      if (error.name !== "QuotaExceededError") throw error; // no room: it waits as long as the page is open
    }
  }

  async run() {
    if (this.running || this.stopped) return;
    this.running = true;
    try {
      let message;
      while (!this.stopped && (message = this.waiting.find((one) => !one.refused))) {
        if (!(await this.offer(message))) break;
      }
    } finally {
      this.running = false;
    }
  }

  /** Whether to go on with the next. */
  async offer(message) {
    try {
      const { id, conversation, text, files, replaces } = message;
      const answer = await call("POST", "messages", { id, conversation, text, files, replaces });
      this.attempt = 0;
      this.discard(id);
      this.told.taken(message, answer);
      return true;
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (error.status === 401) {
        this.told.signedOut();
        return false;
      }
      if (!error.passes) {
        message.refused = error.message;
        this.keep(message);
        this.told.changed(message);
        return true;
      }
      this.attempt += 1;
      for (const one of this.waiting) if (!one.refused) this.told.changed({ ...one, delayed: error.message });
      this.timer = setTimeout(() => this.run(), Math.max(pause(this.attempt), error.retryAfterSeconds * 1000));
      return false;
    }
  }
}

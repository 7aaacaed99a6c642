// Messages that the runtime has not accepted yet. They survive a reload of the page and are sent in order. Each has an
// id, so that the runtime does not accept a message twice if its response was lost.

import { Failure, call, pause } from "./api.js";
import { newId } from "./conversations.js";

export class Outbox {
  /** handlers: changed(message), taken(message, answer), signedOut(). */
  constructor(owner, handlers) {
    this.prefix = `agent-runtime.unsent.${owner}.`;
    this.handlers = handlers;
    this.attempt = 0;
    this.running = false;
    this.timer = 0;
    const keys = Object.keys(localStorage).filter((key) => key.startsWith(this.prefix));
    this.messages = new Map(keys.map((key) => [key.slice(this.prefix.length), JSON.parse(localStorage.getItem(key))]));
    window.addEventListener("online", () => this.sendNow());
  }

  /** The unsent messages, oldest first. */
  get waiting() {
    return [...this.messages.values()].sort((a, b) => a.order - b.order);
  }

  /** Adds a message and sends it. *replaces*: the ids of the messages that it replaces. */
  add(conversation, text, files = [], replaces = []) {
    const at = new Date().toISOString();
    const order = Date.now() + performance.now() / 1e6;
    const message = { id: newId(), conversation, text, files, replaces, at, order };
    this.save(message);
    this.sendNow();
    return message;
  }

  /** Sends a refused message again. */
  retry(id) {
    const message = this.waiting.find((entry) => entry.id === id);
    if (!message) return;
    delete message.refused;
    this.save(message);
    this.handlers.changed(message);
    this.sendNow();
  }

  discard(id) {
    this.messages.delete(id);
    localStorage.removeItem(this.prefix + id);
  }

  /** Sends the unsent messages now, e.g. because the connection is back. */
  sendNow() {
    clearTimeout(this.timer);
    this.attempt = 0;
    this.run();
  }

  stop() {
    clearTimeout(this.timer);
    this.stopped = true;
  }

  save(message) {
    this.messages.set(message.id, message);
    try {
      localStorage.setItem(this.prefix + message.id, JSON.stringify(message));
    } catch (error) {
      if (error.name !== "QuotaExceededError") throw error; // no room: it is lost if the page is closed
    }
  }

  async run() {
    if (this.running || this.stopped) return;
    this.running = true;
    try {
      let message;
      while (!this.stopped && (message = this.waiting.find((entry) => !entry.refused))) {
        if (!(await this.offer(message))) break;
      }
    } finally {
      this.running = false;
    }
  }

  /** Sends a message. Returns whether to continue with the next one. */
  async offer(message) {
    try {
      const { id, conversation, text, files, replaces } = message;
      const answer = await call("POST", "messages", { id, conversation, text, files, replaces });
      this.attempt = 0;
      this.discard(id);
      this.handlers.taken(message, answer);
      return true;
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      if (error.status === 401) {
        this.handlers.signedOut();
        return false;
      }
      if (!error.retryable) {
        message.refused = error.message;
        this.save(message);
        this.handlers.changed(message);
        return true;
      }
      this.attempt += 1;
      for (const entry of this.waiting) if (!entry.refused) this.handlers.changed({ ...entry, delayed: error.message });
      this.timer = setTimeout(() => this.run(), Math.max(pause(this.attempt), error.retryAfterSeconds * 1000));
      return false;
    }
  }
}

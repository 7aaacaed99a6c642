// Requests to the runtime, and the stream of its events.

const BASE = new URL("../", import.meta.url);
const REQUEST_MS = 40_000;
const SILENCE_MS = 40_000; // the server sends at least a comment every 15 s
const LONGEST_PAUSE_MS = 30_000;

/** A failed request. status is 0 if the runtime cannot be reached. */
export class Failure extends Error {
  constructor(status, code, message, retryAfterSeconds = 0) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterSeconds = retryAfterSeconds;
  }

  /** Whether the same request may succeed later without a change. */
  get retryable() {
    return [0, 408, 429, 500, 502, 503, 504].includes(this.status);
  }
}

/** Returns the pause in milliseconds before an attempt (from 1). It doubles each time; half of it is random. */
export function pause(attempt) {
  const longest = Math.min(LONGEST_PAUSE_MS, 500 * 2 ** Math.min(attempt, 10));
  return longest / 2 + (Math.random() * longest) / 2;
}

/** Sends a request and returns the JSON object of the response. Throws Failure. */
export async function call(method, path, body, headers = {}) {
  const response = await sendRequest(path, {
    method,
    headers: body === undefined ? headers : { "Content-Type": "application/json", ...headers },
    body: body === undefined ? undefined : JSON.stringify(body),
    signal: AbortSignal.timeout(REQUEST_MS),
  });
  try {
    return await response.json();
  } catch {
    throw new Failure(0, "unreachable", "The connection was lost.");
  }
}

/** Uploads *data* (a File) and returns the JSON object of the response. Calls progress with the sent share, 0 to 1. */
export function upload(path, data, progress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest(); // fetch does not report upload progress
    request.open("POST", new URL(path, BASE));
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.responseType = "json";
    request.upload.addEventListener("progress", (event) => progress(event.loaded / (event.total || 1)));
    const fail = () => reject(new Failure(0, "unreachable", "The connection was lost."));
    request.addEventListener("error", fail);
    request.addEventListener("abort", fail);
    request.addEventListener("load", () => {
      if (request.status < 300) return resolve(request.response);
      const error = request.response?.error;
      reject(new Failure(request.status, error?.code ?? "failed", error?.message ?? `Error ${request.status}.`));
    });
    signal.addEventListener("abort", () => request.abort());
    request.send(data);
  });
}

async function sendRequest(path, options) {
  let response;
  try {
    response = await fetch(new URL(path, BASE), { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw new Failure(0, "unreachable", "The runtime cannot be reached.");
  }
  if (response.ok) return response;
  const wait = Number(response.headers.get("Retry-After")) || 0;
  const error = await response.json().then((body) => body.error, () => null);
  throw new Failure(response.status, error?.code ?? "failed", error?.message ?? `Error ${response.status}.`, wait);
}

/**
 * Receives the events after *cursor*, and reconnects after lost connections, until *signal* aborts or a 401.
 * Calls handlers.event(name, data), handlers.state("open" | "lost", reason) and handlers.signedOut().
 */
export async function follow(cursor, handlers, signal) {
  let attempt = 0;
  while (!signal.aborted) {
    try {
      for await (const event of stream(cursor, signal)) {
        attempt = 0;
        if (event.id) cursor = event.id;
        if (event.name === "open") handlers.state("open", "");
        else handlers.event(event.name, event.data);
      }
      attempt += 1;
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) return handlers.signedOut();
      attempt += 1;
      if (!(error instanceof Failure)) error = new Failure(0, "unreachable", "The connection was lost.");
      handlers.state("lost", error.message);
      await waitForNetwork(Math.max(pause(attempt), error.retryAfterSeconds * 1000), signal);
      continue;
    }
    if (signal.aborted) return;
    handlers.state("lost", "The runtime closed the connection.");
    await waitForNetwork(pause(attempt), signal);
  }
}

/** Waits *ms* milliseconds, or less if the network comes back or *signal* aborts. */
function waitForNetwork(ms, signal) {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, ms);
    const now = () => (clearTimeout(timer), resolve());
    window.addEventListener("online", now, { once: true });
    signal.addEventListener("abort", now, { once: true });
  });
}

async function* stream(cursor, signal) {
  const quiet = new AbortController();
  const either = AbortSignal.any([signal, quiet.signal]);
  let timer = setTimeout(() => quiet.abort(), SILENCE_MS);
  try {
    const response = await sendRequest("events", { headers: cursor ? { "Last-Event-ID": cursor } : {}, signal: either });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    yield { name: "open" };
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      clearTimeout(timer);
      timer = setTimeout(() => quiet.abort(), SILENCE_MS);
      const blocks = (text + value).split("\n\n");
      text = blocks.pop();
      for (const block of blocks) {
        const event = parse(block);
        if (event) yield event;
      }
    }
  } finally {
    clearTimeout(timer);
    quiet.abort();
  }
}

function parse(block) {
  const fields = {};
  for (const line of block.split("\n")) {
    const at = line.indexOf(": ");
    if (at > 0) fields[line.slice(0, at)] = line.slice(at + 2);
  }
  return fields.event && { id: fields.id, name: fields.event, data: JSON.parse(fields.data) };
}

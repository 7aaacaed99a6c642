// Requests to the runtime, and the stream of what comes from it.

const BASE = new URL("../", import.meta.url);
const REQUEST_MS = 40_000;
const SILENCE_MS = 40_000; // the server says something every 15 s
const LONGEST_PAUSE_MS = 30_000;

/** A request that was not done. status 0: the runtime cannot be reached. */
export class Failure extends Error {
  constructor(status, code, message, retryAfterSeconds = 0) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterSeconds = retryAfterSeconds;
  }

  /** Whether the same request may be taken later without anybody doing anything. */
  get passes() {
    return [0, 408, 429, 500, 502, 503, 504].includes(this.status);
  }
}

/** Pause before attempt *n* (from 1): doubles, half of it random. */
export function pause(attempt) {
  const longest = Math.min(LONGEST_PAUSE_MS, 500 * 2 ** Math.min(attempt, 10));
  return longest / 2 + (Math.random() * longest) / 2;
}

/** The answer's object. Throws Failure. */
export async function call(method, path, body, headers = {}) {
  const response = await reach(path, {
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

/** Sends *data* (a File) and returns the answer's object; progress(part) is told how much of it went, 0 to 1. */
export function upload(path, data, progress, signal) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest(); // fetch does not tell how far it is
    request.open("POST", new URL(path, BASE));
    request.setRequestHeader("Content-Type", "application/octet-stream");
    request.responseType = "json";
    request.upload.addEventListener("progress", (event) => progress(event.loaded / (event.total || 1)));
    const broken = () => reject(new Failure(0, "unreachable", "The connection was lost."));
    request.addEventListener("error", broken);
    request.addEventListener("abort", broken);
    request.addEventListener("load", () => {
      if (request.status < 300) return resolve(request.response);
      const error = request.response?.error;
      reject(new Failure(request.status, error?.code ?? "failed", error?.message ?? `Error ${request.status}.`));
    });
    signal.addEventListener("abort", () => request.abort());
    request.send(data);
  });
}

async function reach(path, options) {
  let response;
  try {
    response = await fetch(new URL(path, BASE), { credentials: "same-origin", cache: "no-store", ...options });
  } catch {
    throw new Failure(0, "unreachable", "The runtime cannot be reached.");
  }
  if (response.ok) return response;
  const wait = Number(response.headers.get("Retry-After")) || 0;
  const error = await response.json().then((told) => told.error, () => null);
  throw new Failure(response.status, error?.code ?? "failed", error?.message ?? `Error ${response.status}.`, wait);
}

/**
 * Follows the events from *cursor* on, through lost connections, until the signal or a 401.
 * told.event(name, data), told.state("open" | "lost", why), told.signedOut().
 */
export async function follow(cursor, told, signal) {
  let attempt = 0;
  while (!signal.aborted) {
    try {
      for await (const event of stream(cursor, signal)) {
        attempt = 0;
        if (event.id) cursor = event.id;
        if (event.name === "open") told.state("open", "");
        else told.event(event.name, event.data);
      }
      attempt += 1;
    } catch (error) {
      if (signal.aborted) return;
      if (error.status === 401) return told.signedOut();
      attempt += 1;
      if (!(error instanceof Failure)) error = new Failure(0, "unreachable", "The connection was lost.");
      told.state("lost", error.message);
      await rest(Math.max(pause(attempt), error.retryAfterSeconds * 1000), signal);
      continue;
    }
    if (signal.aborted) return;
    told.state("lost", "The runtime closed the connection.");
    await rest(pause(attempt), signal);
  }
}

/** Waits, but no longer than until the network is back. */
function rest(ms, signal) {
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
    const response = await reach("events", { headers: cursor ? { "Last-Event-ID": cursor } : {}, signal: either });
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

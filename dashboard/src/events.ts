// The plane's event stream. Read with fetch, because an EventSource cannot send a token; after a lost connection it goes on
// where it stopped, by the number of the last event.

import { signal } from "@preact/signals";
import { ApiError, get, request } from "./api";
import { markDirty, unreachableSince } from "./resource";
import type { PlaneEvent } from "./types";

const RETRY_FIRST_MILLIS = 500;
const RETRY_MAX_MILLIS = 5000;
/** The plane sends a sign of life every 15 s: two may be lost. */
const SILENCE_MAX_MILLIS = 45_000;
const RECENT = 100;

type Listener = (event: PlaneEvent) => void;
const listeners = new Set<Listener>();

/** The newest stored events, newest first: what happened before this page was opened, and since. */
export const recent = signal<PlaneEvent[] | null>(null);
export const isStreaming = signal(false);

let lastSeq = 0;
let running: AbortController | null = null;

export function onEvent(listener: Listener): () => void {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function startStream(): void {
  running?.abort();
  running = new AbortController();
  recent.value = null;
  lastSeq = 0;
  void follow(running.signal);
}

async function follow(stopped: AbortSignal): Promise<void> {
  let delay = RETRY_FIRST_MILLIS;
  while (!stopped.aborted) {
    try {
      if (recent.value === null) await readRecent();
      await readStream(stopped, () => {
        delay = RETRY_FIRST_MILLIS;
      });
    } catch (problem) {
      if (stopped.aborted) return;
      // A refused token is asked for again by the page; a stream that was refused for another reason is tried again.
      if (problem instanceof ApiError && problem.status === 401) return;
      if (!(problem instanceof ApiError)) unreachableSince.value ??= Date.now();
    }
    isStreaming.value = false;
    await new Promise((resolve) => setTimeout(resolve, delay));
    delay = Math.min(2 * delay, RETRY_MAX_MILLIS);
  }
}

async function readRecent(): Promise<void> {
  const { events } = await get<{ events: PlaneEvent[] }>(`/remuda/v1/events/recent?limit=${RECENT}`);
  recent.value = events;
  lastSeq = events[0]?.seq ?? 0;
}

async function readStream(stopped: AbortSignal, onOpen: () => void): Promise<void> {
  const silence = new AbortController();
  let watchdog = setTimeout(() => silence.abort(), SILENCE_MAX_MILLIS);
  try {
    const response = await request("/remuda/v1/events", {
      headers: { "Last-Event-ID": String(lastSeq), Accept: "text/event-stream" },
      signal: AbortSignal.any([stopped, silence.signal]),
    });
    onOpen();
    isStreaming.value = true;
    unreachableSince.value = null;
    // Whatever happened while there was no stream.
    markDirty(() => true);
    const decoder = new TextDecoder();
    let rest = "";
    for await (const chunk of response.body as unknown as AsyncIterable<Uint8Array>) {
      clearTimeout(watchdog);
      watchdog = setTimeout(() => silence.abort(), SILENCE_MAX_MILLIS);
      const blocks = (rest + decoder.decode(chunk, { stream: true })).split("\n\n");
      rest = blocks.pop() ?? "";
      blocks.forEach(readBlock);
    }
  } finally {
    clearTimeout(watchdog);
  }
}

function readBlock(block: string): void {
  let name = "";
  let data = "";
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) name = line.slice(6).trim();
    else if (line.startsWith("data:")) data += line.slice(5).trim();
    else if (line.startsWith("id:")) lastSeq = Number(line.slice(3)) || lastSeq;
  }
  if (!data) return;
  if (name === "gap") return markDirty(() => true);
  if (name === "caught_up") return;
  const event = JSON.parse(data) as PlaneEvent;
  if (event.seq !== undefined) recent.value = [event, ...(recent.value ?? [])].slice(0, 5 * RECENT);
  for (const listener of listeners) listener(event);
}

// Answers of the plane that a page shows, kept up to date. All of a page's resources share one budget: besides the event
// stream a page makes at most one request a second. Whatever was loaded once stays on the screen while it is loaded again.

import { signal, type Signal } from "@preact/signals";
import { useEffect } from "preact/hooks";
import { ApiError, get, needsToken } from "./api";

export interface Loaded<T> {
  data: T | null;
  error: ApiError | null;
  /** When the data came, by this browser's clock. */
  at: number;
}

interface Entry {
  state: Signal<Loaded<unknown>>;
  /** Pages that show it now. */
  users: number;
  everyMillis: number;
  startedAt: number;
  isDirty: boolean;
  isLoading: boolean;
}

const REQUEST_EVERY_MILLIS = 1000;
/** Answers of pages that were left, for the way back. */
const KEPT_MAX = 40;

const entries = new Map<string, Entry>();
let lastRequestAt = 0;
let timer: ReturnType<typeof setTimeout> | undefined;

/** Whether the plane answers; since when it does not. */
export const unreachableSince = signal<number | null>(null);

function entryOf(path: string): Entry {
  let entry = entries.get(path);
  if (!entry) {
    const state = signal<Loaded<unknown>>({ data: null, error: null, at: 0 });
    entry = { state, users: 0, everyMillis: Infinity, startedAt: 0, isDirty: true, isLoading: false };
    entries.set(path, entry);
    forgetOldest();
  }
  return entry;
}

function forgetOldest(): void {
  for (const [path, entry] of entries) {
    if (entries.size <= KEPT_MAX) return;
    if (entry.users === 0) entries.delete(path);
  }
}

/** When a resource should be loaded; the first time it does not wait for its turn. */
function dueAt(entry: Entry): number {
  if (entry.users === 0 || entry.isLoading) return Infinity;
  if (entry.startedAt === 0) return 0;
  const wanted = entry.isDirty ? 0 : entry.startedAt + entry.everyMillis;
  return Math.max(wanted, lastRequestAt + REQUEST_EVERY_MILLIS);
}

function schedule(): void {
  clearTimeout(timer);
  const due = Math.min(...[...entries.values()].map(dueAt));
  if (due !== Infinity) timer = setTimeout(loadDue, Math.max(0, due - Date.now()));
}

function loadDue(): void {
  const now = Date.now();
  const due = [...entries].filter(([, entry]) => dueAt(entry) <= now);
  const first = due.filter(([, entry]) => entry.startedAt === 0);
  const waiting = due.filter(([, entry]) => entry.startedAt !== 0).sort((a, b) => a[1].startedAt - b[1].startedAt);
  for (const [path, entry] of first.length ? first : waiting.slice(0, 1)) void load(path, entry);
  schedule();
}

async function load(path: string, entry: Entry): Promise<void> {
  entry.isLoading = true;
  entry.isDirty = false;
  entry.startedAt = lastRequestAt = Date.now();
  try {
    const data = await get<unknown>(path);
    entry.state.value = { data, error: null, at: Date.now() };
    unreachableSince.value = null;
  } catch (problem) {
    if (problem instanceof ApiError) {
      if (problem.status !== 401) entry.state.value = { ...entry.state.value, error: problem };
    } else {
      unreachableSince.value ??= Date.now();
    }
  } finally {
    entry.isLoading = false;
    schedule();
  }
}

/** Loads `path` now and every `everySeconds`; `null` loads nothing. */
export function useResource<T>(path: string | null, everySeconds: number): Loaded<T> {
  useEffect(() => {
    if (path === null) return;
    const entry = entryOf(path);
    entry.users += 1;
    entry.everyMillis = Math.min(entry.everyMillis, everySeconds * 1000);
    if (entry.startedAt + 1000 < Date.now()) entry.isDirty = true;
    schedule();
    return () => {
      entry.users -= 1;
      if (entry.users === 0) entry.everyMillis = Infinity;
    };
  }, [path, everySeconds]);
  if (path === null) return { data: null, error: null, at: 0 };
  return entryOf(path).state.value as Loaded<T>;
}

/** Something happened that these answers show: they are loaded again as soon as the budget allows. */
export function markDirty(isConcerned: (path: string) => boolean): void {
  for (const [path, entry] of entries) if (isConcerned(path)) entry.isDirty = true;
  schedule();
}

/** Forgets everything: another token sees other things. */
export function forgetAll(): void {
  for (const entry of entries.values()) {
    entry.state.value = { data: null, error: null, at: 0 };
    entry.startedAt = 0;
    entry.isDirty = true;
  }
  needsToken.value = null;
  schedule();
}

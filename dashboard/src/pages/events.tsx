// Every stored event, newest first, with filters in the address. New ones wait behind a button.

import { useEffect, useState } from "preact/hooks";
import { get } from "../api";
import { onEvent } from "../events";
import { clockTime } from "../format";
import { Ago, ConcernIcon, Empty, Loading, Problem } from "../parts/basics";
import { replaceQuery, route } from "../route";
import type { PlaneEvent } from "../types";
import { describeAny } from "../words";

const PAGE = 100;
const KINDS = [
  ["", "all"],
  ["job", "jobs"],
  ["worker", "workers"],
  ["client", "blocks"],
  ["workflow", "quarantine"],
  ["machine", "machines"],
  ["scale", "scaling"],
  ["fleet", "fleets"],
] as const;

export function EventsPage() {
  const { query } = route.value;
  const name = query.get("name") ?? "";
  return (
    <div>
      <h1>Events</h1>
      <div class="filters">
        <div class="tabs" role="group" aria-label="kind of event">
          {KINDS.map(([kind, word]) => (
            <button type="button" key={kind} aria-pressed={name === kind} onClick={() => replaceQuery({ name: kind })}>
              {word}
            </button>
          ))}
        </div>
      </div>
      <EventList key={name} name={name} />
    </div>
  );
}

function EventList({ name }: { name: string }) {
  const [events, setEvents] = useState<PlaneEvent[] | null>(null);
  const [next, setNext] = useState<number | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [added, setAdded] = useState(0);
  const load = async (before: number | null) => {
    const query = new URLSearchParams({ limit: String(PAGE) });
    if (name) query.set("name", name);
    if (before !== null) query.set("before", String(before));
    try {
      const page = await get<{ events: PlaneEvent[]; next: number | null }>(`/remuda/v1/events/recent?${query}`);
      setEvents((old) => (before === null ? page.events : [...(old ?? []), ...page.events]));
      setNext(page.next);
      if (before === null) setAdded(0);
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
    }
  };
  useEffect(() => {
    void load(null);
    return onEvent((event) => {
      if (event.seq !== undefined && (!name || event.name.startsWith(`${name}:`))) setAdded((n) => n + 1);
    });
  }, []);
  if (problem && !events) return <Problem message={problem} />;
  if (!events) return <Loading lines={10} />;
  return (
    <>
      <div class="new-place">
        {added > 0 && (
          <button type="button" class="new-rows" onClick={() => void load(null)}>
            {added} new
          </button>
        )}
      </div>
      {events.length === 0 && <Empty title="No such event is stored" />}
      <ul class="feed long">
        {events.map((event) => {
          const words = describeAny(event);
          return (
            <li key={event.seq} data-row title={event.name}>
              <ConcernIcon concern={words.concern} />
              <span class="feed-text">{words.text}</span>
              <span class="muted feed-time">
                {clockTime(event.at!)} · <Ago at={event.at} />
              </span>
            </li>
          );
        })}
      </ul>
      {next !== null && (
        <p class="more">
          <button type="button" onClick={() => void load(next)}>
            Older events
          </button>
        </p>
      )}
    </>
  );
}

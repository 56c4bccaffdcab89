// What Remuda just did, newest first. While someone reads, the list stays where it is and new rows wait behind a button.

import { useRef, useState } from "preact/hooks";
import { recent } from "../events";
import { count } from "../format";
import { link, withQuery } from "../route";
import type { PlaneEvent } from "../types";
import { describe, type EventText } from "../words";
import { Ago, ConcernIcon, Empty, Loading, Section } from "./basics";

const ROWS_MAX = 60;

interface Row extends EventText {
  key: string;
  at: string;
}

/** Completions in a row become one line: they are the ordinary run of things. */
function rowsOf(events: PlaneEvent[]): Row[] {
  const rows: Row[] = [];
  let completed: PlaneEvent[] = [];
  const flush = () => {
    const [newest] = completed;
    if (newest) {
      const text = <a href={withQuery(link("jobs"), { state: "completed" })}>{count(completed.length, "job")} completed</a>;
      rows.push({ concern: "well", text, key: `done-${completed.at(-1)!.seq}`, at: newest.at! });
    }
    completed = [];
  };
  for (const [n, event] of events.entries()) {
    if (rows.length >= ROWS_MAX) break;
    if (event.name === "job:completed") {
      completed.push(event);
      continue;
    }
    const words = describe(event, events.slice(n + 1, n + 100));
    if (!words) continue;
    flush();
    rows.push({ ...words, key: String(event.seq), at: event.at! });
  }
  flush();
  return rows;
}

export function Feed() {
  const [heldAt, setHeldAt] = useState<number | null>(null);
  const list = useRef<HTMLUListElement>(null);
  const events = recent.value;
  if (!events) return <Section title="What Remuda did"><Loading lines={6} /></Section>;
  const newest = events[0]?.seq ?? 0;
  const shown = heldAt === null ? events : events.filter((event) => (event.seq ?? 0) <= heldAt);
  const rows = rowsOf(shown);
  const waiting = heldAt === null ? 0 : rowsOf(events).length - rows.length;
  const onScroll = () => {
    const isAtTop = (list.current?.scrollTop ?? 0) < 8;
    setHeldAt(isAtTop ? null : (heldAt ?? newest));
  };
  const showNew = () => {
    setHeldAt(null);
    list.current?.scrollTo({ top: 0 });
  };
  return (
    <Section title="What Remuda did" aside={<a href={link("events")}>all events</a>}>
      {waiting > 0 && (
        <button type="button" class="new-rows" onClick={showNew}>
          {waiting} new
        </button>
      )}
      {rows.length === 0 ? (
        <Empty title="Nothing yet">
          <p>Moved jobs, restarted services, blocked workflows and rented machines appear here.</p>
        </Empty>
      ) : (
        <ul class="feed" ref={list} onScroll={onScroll} tabIndex={0} aria-label="what Remuda did, newest first">
          {rows.map((row) => (
            <li key={row.key}>
              <ConcernIcon concern={row.concern} />
              <span class="feed-text">{row.text}</span>
              <span class="muted feed-time">
                <Ago at={row.at} />
              </span>
            </li>
          ))}
        </ul>
      )}
    </Section>
  );
}

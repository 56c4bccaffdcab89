// Small parts that every page uses.

import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { planeNow } from "../clock";
import { ago, duration, exactTime, shortId } from "../format";
import { link } from "../route";
import type { Concern, JobState } from "../types";

/** One meaning for each colour, and never colour alone: each concern has its shape. */
export function ConcernIcon({ concern }: { concern: Concern }) {
  const shape = {
    well: <circle cx="8" cy="8" r="4.5" />,
    working: <path d="M4.5 3.2v9.6L13 8z" />,
    handled: <path d="M8 2.2a5.8 5.8 0 1 0 5.8 5.8h-2.2A3.6 3.6 0 1 1 8 4.4v2.4l4-3.5L8 0z" />,
    person: <path d="M8 1.2 15.3 14H.7zM7.1 5.6v4.2h1.8V5.6zm0 5.2v1.8h1.8v-1.8z" fill-rule="evenodd" />,
  }[concern];
  return (
    <svg class={`icon ${concern}`} viewBox="0 0 16 16" aria-hidden="true">
      {shape}
    </svg>
  );
}

export const CONCERN_WORDS: Record<Concern, string> = {
  well: "well",
  working: "working",
  handled: "being handled",
  person: "a person is needed",
};

const STATE_CONCERN: Record<JobState, Concern> = {
  queued: "well",
  running: "working",
  completed: "well",
  failed: "person",
  cancelled: "well",
};
const STATE_WORDS: Record<JobState, string> = {
  queued: "waiting",
  running: "running",
  completed: "completed",
  failed: "failed",
  cancelled: "cancelled",
};

/** An icon and a word. */
export function Pill({ concern, children, title }: { concern: Concern; children: ComponentChildren; title?: string }) {
  return (
    <span class={`pill ${concern}`} title={title}>
      <ConcernIcon concern={concern} />
      {children}
    </span>
  );
}

export function StatePill({ state, isRetry }: { state: JobState; isRetry?: boolean }) {
  if (state === "queued" && isRetry) return <Pill concern="handled">trying again</Pill>;
  if (state === "completed")
    return (
      <span class="pill well" title="completed">
        <svg class="icon well" viewBox="0 0 16 16" aria-hidden="true">
          <path d="m2.5 8.5 3.7 3.7 7.3-8-1.5-1.4-5.9 6.5-2.2-2.2z" />
        </svg>
        completed
      </span>
    );
  return <Pill concern={STATE_CONCERN[state]}>{STATE_WORDS[state]}</Pill>;
}

/** A relative time that moves, with the exact one on hover. */
export function Ago({ at }: { at: string | null | undefined }) {
  if (!at) return <span class="muted">–</span>;
  return (
    <time dateTime={at} title={exactTime(at)} class="nowrap">
      {ago(planeNow() - Date.parse(at))}
    </time>
  );
}

/** How long something takes that has not ended. */
export function Since({ at }: { at: string }) {
  return (
    <time dateTime={at} title={`since ${exactTime(at)}`} class="nowrap">
      {duration(planeNow() - Date.parse(at))}
    </time>
  );
}

/** A button that copies a text; it says so for a moment. */
export function Copy({ text, children, title }: { text: string; children: ComponentChildren; title?: string }) {
  const [isCopied, setCopied] = useState(false);
  const copy = async (event: Event) => {
    event.preventDefault();
    event.stopPropagation();
    await copyText(text);
    setCopied(true);
    setTimeout(() => setCopied(false), 1200);
  };
  return (
    <button type="button" class="copy" onClick={copy} title={title ?? `copy ${text}`}>
      {children}
      <span class="copied" aria-live="polite">
        {isCopied ? " copied" : ""}
      </span>
    </button>
  );
}

async function copyText(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages that are not served over TLS have no clipboard: a selected text can still be copied.
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "offscreen";
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

export function JobLink({ id }: { id: string }) {
  return (
    <a href={link("jobs", id)} class="mono" title={id}>
      {shortId(id)}
    </a>
  );
}

export function WorkerLink({ id }: { id: string }) {
  return <a href={link("workers", id)}>{id}</a>;
}

export function ShapeLink({ shape }: { shape: string }) {
  return (
    <a href={link("workflows", shape)} class="mono" title={`workflow shape ${shape}`}>
      {shape.slice(0, 8)}
    </a>
  );
}

export function Bar({ value, concern = "working", label }: { value: number; concern?: Concern; label: string }) {
  const percent = Math.round(100 * Math.min(1, Math.max(0, value)));
  return (
    <progress class={`bar ${concern}`} max={100} value={percent} aria-label={label}>
      {percent} %
    </progress>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty">
      <p class="empty-title">{title}</p>
      {children}
    </div>
  );
}

/** A command to copy. */
export function Command({ text }: { text: string }) {
  return (
    <div class="command">
      <code tabIndex={0}>{text}</code>
      <Copy text={text} title="copy the command">
        copy
      </Copy>
    </div>
  );
}

/** Placeholder while the first answer is on its way: it has the size of what comes, so that nothing jumps. */
export function Loading({ lines = 4 }: { lines?: number }) {
  return (
    <div class="loading" role="status" aria-label="loading">
      {Array.from({ length: lines }, (_, n) => (
        <div class="ghost" key={n} />
      ))}
    </div>
  );
}

export function Problem({ message }: { message: string }) {
  return (
    <div class="problem" role="alert">
      <ConcernIcon concern="person" /> {message}
    </div>
  );
}

export function Section({
  title,
  aside,
  children,
  id,
}: {
  title: string;
  aside?: ComponentChildren;
  children: ComponentChildren;
  id?: string;
}) {
  return (
    <section aria-label={title} id={id}>
      <header class="section-head">
        <h2>{title}</h2>
        <div class="aside">{aside}</div>
      </header>
      {children}
    </section>
  );
}

export function Json({ value }: { value: unknown }) {
  return (
    <pre class="json" tabIndex={0}>
      {JSON.stringify(value, null, 2)}
    </pre>
  );
}

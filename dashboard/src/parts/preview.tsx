// The newest preview of a running job. Fetched with the token, one at a time for the whole page and at most one a second.

import { useEffect, useState } from "preact/hooks";
import { request } from "../api";
import { onEvent } from "../events";
import { shortId } from "../format";

const EVERY_MILLIS = 1000;
const wanted = new Set<string>();
const shown = new Map<string, (url: string) => void>();
let isFetching = false;
let lastAt = 0;

function want(job: string): void {
  wanted.add(job);
  void fetchNext();
}

async function fetchNext(): Promise<void> {
  if (isFetching || wanted.size === 0) return;
  isFetching = true;
  await new Promise((resolve) => setTimeout(resolve, Math.max(0, lastAt + EVERY_MILLIS - Date.now())));
  // Only now: it may have ended while this waited.
  const [job = ""] = wanted;
  wanted.delete(job);
  const show = shown.get(job);
  try {
    if (show) lastAt = Date.now();
    if (show) show(URL.createObjectURL(await (await request(`/remuda/v1/jobs/${job}/preview`)).blob()));
  } catch {
    // It ended meanwhile.
  }
  isFetching = false;
  void fetchNext();
}

export function Preview({ job, hasPreview, large }: { job: string; hasPreview: boolean; large?: boolean }) {
  const [url, setUrl] = useState<string | null>(null);
  useEffect(() => {
    shown.set(job, (next) =>
      setUrl((old) => {
        if (old) URL.revokeObjectURL(old);
        return next;
      }),
    );
    if (hasPreview) want(job);
    const stop = onEvent((event) => {
      if (event.job !== job) return;
      if (event.name === "job:preview") want(job);
      // The preview ends with the attempt.
      else if (event.name !== "job:progress") wanted.delete(job);
    });
    return () => {
      stop();
      shown.delete(job);
      wanted.delete(job);
    };
  }, [job, hasPreview]);
  const name = large ? "preview large" : "preview";
  if (!url) return <div class={`${name} none`} aria-hidden="true" />;
  return <img class={name} src={url} alt={`preview of job ${shortId(job)}`} />;
}

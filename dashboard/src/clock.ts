// The time as the plane has it: a browser's clock may be minutes off, and "silent for 40 s" must not become "in 2 min".

import { signal } from "@preact/signals";

let offsetMillis = 0;

/** Moves once a second; everything that shows a relative time reads it. */
export const tick = signal(Date.now());

export function planeNow(): number {
  return tick.value + offsetMillis;
}

export function learnTime(now: string): void {
  offsetMillis = Date.parse(now) - Date.now();
}

setInterval(() => {
  tick.value = Date.now();
}, 1000);

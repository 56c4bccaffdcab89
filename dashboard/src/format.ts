// Times, durations, ids and numbers for people.

const SECOND = 1000;
const MINUTE = 60 * SECOND;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

/** `4 s`, `3 min`, `2 h 5 min`, `3 d`: as short as it can be and still be of use. */
export function duration(millis: number): string {
  const ms = Math.max(0, millis);
  if (ms < SECOND) return ms < 100 ? `${Math.round(ms)} ms` : `${(ms / SECOND).toFixed(1)} s`;
  if (ms < MINUTE) return `${Math.floor(ms / SECOND)} s`;
  if (ms < 10 * MINUTE) {
    const seconds = Math.floor((ms % MINUTE) / SECOND);
    return seconds ? `${Math.floor(ms / MINUTE)} min ${seconds} s` : `${Math.floor(ms / MINUTE)} min`;
  }
  if (ms < HOUR) return `${Math.floor(ms / MINUTE)} min`;
  if (ms < DAY) {
    const minutes = Math.floor((ms % HOUR) / MINUTE);
    return minutes ? `${Math.floor(ms / HOUR)} h ${minutes} min` : `${Math.floor(ms / HOUR)} h`;
  }
  return `${Math.floor(ms / DAY)} d`;
}

export function ago(millis: number): string {
  if (millis < -2 * SECOND) return `in ${duration(-millis)}`;
  return millis < 2 * SECOND ? "just now" : `${duration(millis)} ago`;
}

/** In the viewer's own time zone. */
export function exactTime(at: string | number | Date): string {
  return new Date(at).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
}

export function clockTime(at: string | number | Date): string {
  return new Date(at).toLocaleTimeString(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
}

/** The last eight characters: job ids begin with the time, so the first ones are much alike. */
export function shortId(id: string): string {
  return id.length > 12 ? id.slice(-8) : id;
}

export function shortHash(hash: string): string {
  return hash.slice(0, 8);
}

export function percent(part: number, whole: number): string {
  return whole === 0 ? "–" : `${Math.round((100 * part) / whole)} %`;
}

export function dollars(amount: number): string {
  return amount >= 100 ? `$${amount.toFixed(0)}` : `$${amount.toFixed(2)}`;
}

export function bytes(count: number): string {
  if (count < 1024) return `${count} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let value = count / 1024;
  let unit = 0;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 10 ? value.toFixed(0) : value.toFixed(1)} ${units[unit]}`;
}

export function count(n: number, what: string): string {
  return `${n.toLocaleString()} ${what}${n === 1 ? "" : "s"}`;
}

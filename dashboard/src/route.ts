// Where the page is: the part of the address after `#`, so that one file serves every page, ids and searches stay out of
// the logs of proxies, and every list with its filters is a link to send to a colleague.

import { signal } from "@preact/signals";

export interface Route {
  /** `["jobs", "0193…"]` */
  parts: string[];
  query: URLSearchParams;
}

function read(): Route {
  const [path = "", query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), query: new URLSearchParams(query) };
}

export const route = signal<Route>(read());

addEventListener("hashchange", () => {
  route.value = read();
});

export function link(...parts: string[]): string {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function withQuery(href: string, query: Record<string, string | null | undefined>): string {
  const set = Object.entries(query).filter(([, value]) => value) as [string, string][];
  return set.length ? `${href}?${new URLSearchParams(set)}` : href;
}

export function go(href: string): void {
  location.hash = href.replace(/^#/, "");
}

/** Changes the filters of this page; the way back leads to the page before, not through every letter of a search. */
export function replaceQuery(query: Record<string, string | null | undefined>): void {
  const href = withQuery(link(...route.value.parts), query);
  history.replaceState(null, "", href);
  route.value = read();
}

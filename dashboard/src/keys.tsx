// The keyboard: `/` search, `j` and `k` through rows, Enter opens, `g` and a letter goes to a page, `?` shows this list.

import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { go, link, route } from "./route";

const GOTO: Record<string, [string, string]> = {
  n: ["", "now"],
  j: ["jobs", "jobs"],
  w: ["workers", "workers"],
  f: ["fleet", "fleet and money"],
  o: ["workflows", "workflows"],
  e: ["events", "events"],
  s: ["settings", "settings and audit"],
  h: ["health", "health"],
};

const isHelpOpen = signal(false);
/** After `g` the next key within this time names a page. */
const GOTO_MILLIS = 1500;

function rows(): HTMLElement[] {
  return [...document.querySelectorAll<HTMLElement>("[data-row]")];
}

function move(by: number): void {
  const all = rows();
  const at = all.findIndex((row) => row.classList.contains("selected"));
  const next = all[Math.min(all.length - 1, Math.max(0, at + by))];
  if (!next) return;
  all[at]?.classList.remove("selected");
  next.classList.add("selected");
  next.scrollIntoView({ block: "nearest" });
  next.querySelector<HTMLElement>("a")?.focus({ preventScroll: true });
}

function openSelected(): boolean {
  const row = document.querySelector<HTMLElement>("[data-row].selected");
  const href = row?.dataset.href;
  if (href) go(href);
  return Boolean(href);
}

function search(): void {
  const box = document.querySelector<HTMLInputElement>("input[type=search]");
  if (box) box.focus();
  else {
    go(link("jobs"));
    setTimeout(() => document.querySelector<HTMLInputElement>("input[type=search]")?.focus(), 50);
  }
}

export function useKeys(): void {
  useEffect(() => {
    let goAt = 0;
    const onKey = (event: KeyboardEvent) => {
      const target = event.target as HTMLElement;
      const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName);
      if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]:not(.help)")) return;
      if (isTyping) {
        if (event.key === "Escape") target.blur();
        return;
      }
      if (Date.now() - goAt < GOTO_MILLIS && GOTO[event.key]) {
        goAt = 0;
        return go(link(GOTO[event.key]![0]));
      }
      goAt = 0;
      if (event.key === "g") goAt = Date.now();
      else if (event.key === "j") move(1);
      else if (event.key === "k") move(-1);
      else if (event.key === "/") {
        event.preventDefault();
        search();
      } else if (event.key === "?") isHelpOpen.value = !isHelpOpen.value;
      else if (event.key === "Escape") isHelpOpen.value = false;
      else if (event.key === "Enter" && target.tagName !== "BUTTON" && target.tagName !== "A") openSelected();
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
}

export function Help() {
  const dialog = useRef<HTMLDialogElement>(null);
  const isOpen = isHelpOpen.value;
  const where = route.value;
  useEffect(() => {
    isHelpOpen.value = false;
  }, [where]);
  useEffect(() => {
    if (isOpen) dialog.current?.showModal();
    else dialog.current?.close();
  }, [isOpen]);
  const close = () => {
    isHelpOpen.value = false;
  };
  return (
    <dialog ref={dialog} class="help" onClose={close} aria-labelledby="help-title">
      <h2 id="help-title">Keys</h2>
      <dl class="keys">
        <dt>
          <kbd>/</kbd>
        </dt>
        <dd>search jobs</dd>
        <dt>
          <kbd>j</kbd> <kbd>k</kbd>
        </dt>
        <dd>next and previous row</dd>
        <dt>
          <kbd>Enter</kbd>
        </dt>
        <dd>open the row</dd>
        {Object.entries(GOTO).map(([key, [, title]]) => (
          <>
            <dt>
              <kbd>g</kbd> <kbd>{key}</kbd>
            </dt>
            <dd>{title}</dd>
          </>
        ))}
        <dt>
          <kbd>?</kbd>
        </dt>
        <dd>this list</dd>
      </dl>
      <div class="buttons">
        <button type="button" onClick={close}>
          Close
        </button>
      </div>
    </dialog>
  );
}

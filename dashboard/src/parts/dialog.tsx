// Every action says what it will do before it does it, and what came of it afterwards.

import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { caller } from "../api";
import { markDirty } from "../resource";
import { ConcernIcon } from "./basics";

export interface Action {
  /** "Cancel job 3f2a9c01" */
  title: string;
  /** What will happen, in a sentence or two. */
  consequence: ComponentChildren;
  /** The word on the button. */
  verb: string;
  isDangerous?: boolean;
  /** Asks for a reason, which is logged with who did it. */
  withReason?: boolean;
  run: (reason: string) => Promise<string>;
}

const open = signal<Action | null>(null);
const notice = signal<{ text: string; isProblem: boolean } | null>(null);
let noticeTimer: ReturnType<typeof setTimeout> | undefined;

export function ask(action: Action): void {
  open.value = action;
}

export function notify(text: string, isProblem = false): void {
  notice.value = { text, isProblem };
  clearTimeout(noticeTimer);
  noticeTimer = setTimeout(() => {
    notice.value = null;
  }, 8000);
}

/** The reason as it is stored: with the name of who gave it. */
export function signed(reason: string, verb: string): string {
  const name = caller.value?.name;
  const who = name && name !== "anyone" ? ` by ${name}` : "";
  return reason ? `${reason} (${verb} in the dashboard${who})` : `${verb} in the dashboard${who}`;
}

export function Dialogs() {
  return (
    <>
      {open.value && <Confirm action={open.value} />}
      <div class="notice-place" role="status" aria-live="polite">
        {notice.value && (
          <div class={`notice ${notice.value.isProblem ? "person" : "well"}`}>
            <ConcernIcon concern={notice.value.isProblem ? "person" : "well"} />
            {notice.value.text}
            <button type="button" class="plain" aria-label="close" onClick={() => (notice.value = null)}>
              ×
            </button>
          </div>
        )}
      </div>
    </>
  );
}

function Confirm({ action }: { action: Action }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [reason, setReason] = useState("");
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => dialog.current?.showModal(), []);
  const close = () => {
    open.value = null;
  };
  const submit = async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    try {
      notify(await action.run(reason.trim()));
      markDirty(() => true);
      close();
    } catch (error) {
      setProblem(error instanceof Error ? error.message : String(error));
      setBusy(false);
    }
  };
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="dialog-title">
      <form onSubmit={submit}>
        <h2 id="dialog-title">{action.title}</h2>
        <div class="consequence">{action.consequence}</div>
        {action.withReason && (
          <label class="field">
            Reason <span class="muted">(optional, logged with your name)</span>
            <input
              value={reason}
              maxLength={200}
              onInput={(event) => setReason((event.target as HTMLInputElement).value)}
            />
          </label>
        )}
        {problem && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        <div class="buttons">
          <button type="button" onClick={close}>
            Keep as it is
          </button>
          <button type="submit" class={action.isDangerous ? "dangerous" : "primary"} disabled={isBusy}>
            {action.verb}
          </button>
        </div>
      </form>
    </dialog>
  );
}

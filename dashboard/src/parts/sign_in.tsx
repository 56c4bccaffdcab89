// Asks for a token where the plane needs one.

import { useState } from "preact/hooks";

export function SignIn({ problem, onEnter }: { problem: string; onEnter: (secret: string) => void }) {
  const [secret, setSecret] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    if (secret.trim()) onEnter(secret.trim());
  };
  return (
    <main class="sign-in">
      <h1>Remuda</h1>
      <p>This plane needs a token. An admin makes one with</p>
      <p>
        <code>remuda token create --role admin</code>
      </p>
      <form onSubmit={submit}>
        <label class="field">
          Token
          <input
            type="password"
            autoComplete="off"
            autofocus
            value={secret}
            onInput={(event) => setSecret((event.target as HTMLInputElement).value)}
          />
        </label>
        {problem && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
        <button type="submit" class="primary">
          Open the dashboard
        </button>
      </form>
      <p class="muted">It is kept in this tab until you close it, and sent to this plane only.</p>
    </main>
  );
}

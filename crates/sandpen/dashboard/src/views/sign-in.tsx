// The way in: by the built-in sign-in where there is one, or by a token.

import { useState } from "preact/hooks";
import { get, words } from "../http.ts";
import { begin, forget, keep } from "../session.ts";
import { ThemeSwitch } from "../parts/theme-switch.tsx";
import type { SessionAnswer, SignIn } from "../types.ts";

interface Properties {
  by: SignIn;
  why: string | null;
  onToken: () => void;
}

export function SignInView({ by, why, onToken }: Properties) {
  const [pasted, setPasted] = useState("");
  const [trouble, setTrouble] = useState<string | null>(why);
  const [busy, setBusy] = useState(false);

  async function show(event: Event) {
    event.preventDefault();
    setBusy(true);
    setTrouble(null);
    keep(pasted.trim());
    try {
      await get<SessionAnswer>("/api/session");
      onToken();
    } catch (error) {
      forget();
      setTrouble(words(error));
    } finally {
      setBusy(false);
    }
  }

  async function leaveForSignIn() {
    setTrouble(null);
    try {
      await begin();
    } catch (error) {
      setTrouble(words(error));
    }
  }

  return (
    <main class="sign-in" aria-label="Sign in">
      <div class="corner">
        <ThemeSwitch />
      </div>
      <h1>
        <svg viewBox="0 0 32 32" aria-hidden="true">
          <rect x="3" y="3" width="26" height="26" rx="7" />
          <path d="M10 11l5 5-5 5M17 21h6" />
        </svg>
        Sandpen
      </h1>
      <p class={trouble ? "trouble" : "trouble none"} role="alert">
        {trouble}
      </p>
      {by === "oauth" && (
        <>
          <button type="button" class="primary wide" onClick={leaveForSignIn}>
            Sign in
          </button>
          <p class="or">or</p>
        </>
      )}
      <form onSubmit={show}>
        <label for="token">Token</label>
        <input
          id="token"
          type="password"
          autocomplete="off"
          spellcheck={false}
          required
          value={pasted}
          aria-describedby="token-hint"
          onInput={(event) => setPasted(event.currentTarget.value)}
        />
        <p class="hint" id="token-hint">
          <code>sandpen token create</code> makes one; with the code-runner profile it is <code>MCP_API_TOKEN</code>. It is kept in
          this tab alone.
        </p>
        <button type="submit" class={by === "oauth" ? "wide" : "primary wide"} disabled={busy || pasted.trim() === ""}>
          Use this token
        </button>
      </form>
    </main>
  );
}

// Code of a person, in any language that the server has.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, send, words } from "../http.ts";
import { RunOutput } from "../parts/output.tsx";
import type { Language, Run, Session, State } from "../types.ts";
import { StopRun } from "./runs.tsx";

const KEPT = "sandpen.playground";

const BEGINNINGS: Record<string, string> = {
  python: 'import platform\n\nprint("hello from Python", platform.python_version())\n',
  javascript: 'console.log("hello from", process.version);\n',
  typescript: 'const who: string = "TypeScript";\nconsole.log(`hello from ${who}`);\n',
  bash: 'echo "hello from $(uname -sr)"\n',
};

interface Draft {
  language: string;
  code: string;
}

function kept(): Draft {
  try {
    return JSON.parse(sessionStorage.getItem(KEPT) ?? "") as Draft;
  } catch {
    return { language: "", code: "" };
  }
}

export function PlaygroundView({ session, state }: { session: Session; state: State | null }) {
  const [languages, setLanguages] = useState<Language[] | null>(null);
  const [draft, setDraft] = useState(kept);
  const [stdin, setStdin] = useState("");
  const [packages, setPackages] = useState("");
  const [seconds, setSeconds] = useState("");
  const [sandbox, setSandbox] = useState("");
  const [run, setRun] = useState<Run | null>(null);
  const [busy, setBusy] = useState(false);
  const [trouble, setTrouble] = useState<string | null>(null);
  const form = useRef<HTMLFormElement>(null);

  useEffect(() => {
    const given = new AbortController();
    get<{ languages: Language[] }>("/api/languages", given.signal).then(
      ({ languages }) => {
        setLanguages(languages);
        setDraft((draft) => {
          if (languages.some(({ name }) => name === draft.language)) return draft;
          const language = languages.find(({ name }) => name === "python")?.name ?? languages[0]?.name ?? "";
          return { language, code: draft.code || (BEGINNINGS[language] ?? "") };
        });
      },
      (error: unknown) => given.signal.aborted || setTrouble(words(error)),
    );
    return () => given.abort();
  }, []);

  useEffect(() => sessionStorage.setItem(KEPT, JSON.stringify(draft)), [draft]);

  function choose(language: string) {
    const isUntouched = draft.code === "" || Object.values(BEGINNINGS).includes(draft.code);
    setDraft({ language, code: isUntouched ? (BEGINNINGS[language] ?? "") : draft.code });
  }

  async function start(event: Event) {
    event.preventDefault();
    setBusy(true);
    setTrouble(null);
    const wanted = packages.split(/[\s,]+/).filter(Boolean);
    try {
      const begun = await send<Run>("POST", "/api/run", {
        language: draft.language,
        code: draft.code,
        ...(stdin ? { stdin } : {}),
        ...(sandbox ? { sandbox_id: sandbox } : {}),
        ...(wanted.length && !sandbox ? { packages: wanted } : {}),
        ...(seconds ? { timeout_s: Number(seconds) } : {}),
      });
      setRun(begun);
    } catch (error) {
      setTrouble(words(error));
    } finally {
      setBusy(false);
    }
  }

  if (!session.may.run) return <p class="empty">You may not run code on this server.</p>;
  const own = state?.sandboxes.filter((sandbox) => sandbox.own) ?? [];
  return (
    <>
      <div class="heading">
        <h1>Playground</h1>
      </div>
      <div class="playground">
        <form ref={form} onSubmit={start} aria-label="Code to run">
          <div class="fields">
            <label>
              Language
              <select value={draft.language} onChange={(event) => choose(event.currentTarget.value)} disabled={!languages}>
                {languages === null && <option value="">Loading…</option>}
                {languages?.map(({ name, title, version }) => (
                  <option key={name} value={name}>
                    {version?.startsWith(title) ? version : `${title} – ${version}`}
                  </option>
                ))}
              </select>
            </label>
            <label>
              Where
              <select value={sandbox} onChange={(event) => setSandbox(event.currentTarget.value)}>
                <option value="">a fresh sandbox</option>
                {own.map(({ id, name }) => (
                  <option key={id} value={id}>
                    {name ?? id}
                  </option>
                ))}
              </select>
            </label>
          </div>
          <label class="code">
            Code
            <textarea
              class="mono"
              rows={16}
              spellcheck={false}
              autocapitalize="off"
              autocomplete="off"
              value={draft.code}
              aria-describedby="code-hint"
              onInput={(event) => setDraft({ ...draft, code: event.currentTarget.value })}
              onKeyDown={(event) => {
                if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
                  event.preventDefault();
                  form.current?.requestSubmit();
                }
              }}
            />
          </label>
          <details>
            <summary>Input, packages and time</summary>
            <label>
              Standard input
              <textarea class="mono" rows={3} value={stdin} onInput={(event) => setStdin(event.currentTarget.value)} />
            </label>
            <label>
              Packages
              <input
                class="mono"
                value={packages}
                disabled={sandbox !== ""}
                placeholder="numpy pandas==2.3"
                autocomplete="off"
                spellcheck={false}
                onInput={(event) => setPackages(event.currentTarget.value)}
              />
            </label>
            <label>
              Seconds until it is killed
              <input
                type="number"
                min="1"
                value={seconds}
                placeholder="as the server says"
                onInput={(event) => setSeconds(event.currentTarget.value)}
              />
            </label>
          </details>
          <div class="submit">
            <button type="submit" class="primary" disabled={busy || !draft.language || !draft.code.trim()} aria-busy={busy}>
              Run
            </button>
            <span class="hint" id="code-hint">
              Ctrl+Enter runs it. Pictures that it saves in its directory are shown.
            </span>
          </div>
          {trouble && (
            <p class="trouble" role="alert">
              {trouble}
            </p>
          )}
        </form>
        <div class="result">
          {run ? (
            <>
              {run.state === "running" && session.may.stop_runs && (
                <div class="over">
                  <StopRun id={run.id} />
                </div>
              )}
              <RunOutput key={run.id} id={run.id} onRun={setRun} />
            </>
          ) : (
            <p class="empty">The output comes here.</p>
          )}
        </div>
      </div>
    </>
  );
}

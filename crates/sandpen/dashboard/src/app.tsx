// The frame of all views: who is signed in, where they are, and the ways to elsewhere.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, onSignedOut, words } from "./http.ts";
import { useLive } from "./live.ts";
import { ThemeSwitch } from "./parts/theme-switch.tsx";
import { type Route, useRoute } from "./route.ts";
import { finish, leave } from "./session.ts";
import type { Session, SessionAnswer, SignIn } from "./types.ts";
import { AuditView } from "./views/audit.tsx";
import { PlaygroundView } from "./views/playground.tsx";
import { RunView, RunsView } from "./views/runs.tsx";
import { SandboxView } from "./views/sandbox.tsx";
import { SandboxesView } from "./views/sandboxes.tsx";
import { SignInView } from "./views/sign-in.tsx";

declare const LICENSES: string;

type Standing = { is: "asking" } | { is: "out"; by: SignIn; why: string | null } | { is: "in"; session: Session };

export function App() {
  const [standing, setStanding] = useState<Standing>({ is: "asking" });

  async function ask(why: string | null = null) {
    try {
      const answer = await get<SessionAnswer>("/api/session");
      setStanding(answer.signed_in ? { is: "in", session: answer } : { is: "out", by: answer.sign_in, why });
    } catch (error) {
      // A wrong token was forgotten with the answer: who asks without one is told how to sign in.
      const by = await get<SessionAnswer>("/api/session").catch(() => null);
      setStanding({ is: "out", by: by?.sign_in ?? "token", why: words(error) });
    }
  }

  useEffect(() => {
    onSignedOut(() =>
      setStanding((now) => (now.is === "in" ? { is: "out", by: now.session.sign_in, why: "You are signed in no more." } : now)),
    );
    finish().then(
      () => ask(),
      (error: unknown) => ask(words(error)),
    );
  }, []);

  async function signOut(session: Session) {
    await leave(session.sign_in === "oauth");
    await ask();
  }

  if (standing.is === "asking") return <p class="loading">Loading…</p>;
  if (standing.is === "out") return <SignInView by={standing.by} why={standing.why} onToken={() => ask()} />;
  const { session } = standing;
  return <Signed session={session} onSignOut={() => signOut(session)} />;
}

const TITLES: Record<Route["view"], string> = {
  sandboxes: "Sandboxes",
  sandbox: "Sandbox",
  playground: "Playground",
  runs: "Runs",
  run: "Run",
  audit: "Audit trail",
};

function Signed({ session, onSignOut }: { session: Session; onSignOut: () => void }) {
  const route = useRoute();
  const [all, setAll] = useState(false);
  const live = useLive(all && session.may.see_all);
  const main = useRef<HTMLElement>(null);
  const isFirst = useRef(true);
  const place = route.view === "sandbox" || route.view === "run" ? `${route.view}/${route.id}` : route.view;

  useEffect(() => {
    document.title = `${TITLES[route.view]} – Sandpen`;
    // Whoever reads by ear is taken to what has changed.
    if (!isFirst.current) main.current?.focus();
    isFirst.current = false;
  }, [place]);

  const links: [string, string, boolean][] = [
    ["#/sandboxes", "Sandboxes", route.view === "sandboxes" || route.view === "sandbox"],
    ["#/playground", "Playground", route.view === "playground"],
    ["#/runs", "Runs", route.view === "runs" || route.view === "run"],
  ];
  if (session.may.read_audit) links.push(["#/audit", "Audit", route.view === "audit"]);

  return (
    <>
      <a class="skip" href="#main" onClick={(event) => (event.preventDefault(), main.current?.focus())}>
        Skip to content
      </a>
      <header class="top">
        <a class="brand" href="#/sandboxes">
          <svg viewBox="0 0 32 32" aria-hidden="true">
            <rect x="3" y="3" width="26" height="26" rx="7" />
            <path d="M10 11l5 5-5 5M17 21h6" />
          </svg>
          Sandpen
        </a>
        <nav aria-label="Views">
          {links.map(([address, title, isHere]) => (
            <a key={address} href={address} aria-current={isHere ? "page" : undefined}>
              {title}
            </a>
          ))}
        </nav>
        <div class="who">
          <ThemeSwitch />
          <span class="owner" title={`Signed in as ${session.owner}; may ${session.scopes.join(", ")}`}>
            {session.owner}
          </span>
          {session.sign_in !== "none" && (
            <button type="button" class="quiet" onClick={onSignOut}>
              Sign out
            </button>
          )}
        </div>
      </header>
      <main id="main" ref={main} tabIndex={-1} aria-label={TITLES[route.view]}>
        <p class={live.trouble ? "trouble" : "trouble none"} role="status">
          {live.trouble}
        </p>
        <View route={route} session={session} live={live.state} all={all} setAll={setAll} />
      </main>
      <footer>
        Sandpen {session.version}
        {session.profile && ` · speaks for ${session.profile}`} · <a href={LICENSES}>licences</a>
      </footer>
    </>
  );
}

function View({
  route,
  session,
  live,
  all,
  setAll,
}: {
  route: Route;
  session: Session;
  live: ReturnType<typeof useLive>["state"];
  all: boolean;
  setAll: (all: boolean) => void;
}) {
  switch (route.view) {
    case "sandboxes":
      return <SandboxesView session={session} state={live} all={all} setAll={setAll} />;
    case "sandbox":
      return <SandboxView key={route.id} session={session} state={live} id={route.id} part={route.part} path={route.path} />;
    case "playground":
      return <PlaygroundView session={session} state={live} />;
    case "runs":
      return <RunsView state={live} />;
    case "run":
      return <RunView key={route.id} id={route.id} session={session} />;
    case "audit":
      return <AuditView session={session} />;
  }
}

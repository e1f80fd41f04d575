// Who is signed in: a token in this tab, and how to get one.

const TOKEN = "sandpen.token";
const REFRESH = "sandpen.refresh";
const PENDING = "sandpen.sign-in";
const CLIENT = "sandpen-dashboard";

export function token(): string | null {
  return sessionStorage.getItem(TOKEN);
}

export function keep(value: string): void {
  sessionStorage.setItem(TOKEN, value);
}

export function forget(): void {
  sessionStorage.removeItem(TOKEN);
  sessionStorage.removeItem(REFRESH);
}

interface Pending {
  state: string;
  verifier: string;
  /** Where somebody was before signing in. */
  place: string;
}

interface Metadata {
  issuer: string;
  authorization_endpoint: string;
  token_endpoint: string;
  revocation_endpoint?: string;
}

function base64url(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

function random(): string {
  return base64url(crypto.getRandomValues(new Uint8Array(32)));
}

/** Our own: an authorization server of somebody else is none that this page would follow. */
async function metadata(): Promise<Metadata> {
  const answer = await fetch("/.well-known/oauth-authorization-server", { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error("this server does not say how to sign in");
  const said = (await answer.json()) as Metadata;
  for (const address of [said.authorization_endpoint, said.token_endpoint]) {
    if (new URL(address, location.href).origin !== location.origin) throw new Error("sign-in leads to another server");
  }
  return said;
}

const redirect = () => `${location.origin}/`;

/** Leaves this page; `finish` goes on when the browser comes back. */
export async function begin(): Promise<void> {
  if (!crypto.subtle) throw new Error("signing in needs HTTPS, or this machine's own address; a token can be pasted instead");
  const { authorization_endpoint } = await metadata();
  const pending: Pending = { state: random(), verifier: random(), place: location.hash };
  sessionStorage.setItem(PENDING, JSON.stringify(pending));
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(pending.verifier));
  const address = new URL(authorization_endpoint, location.href);
  const parameters = {
    response_type: "code",
    client_id: CLIENT,
    redirect_uri: redirect(),
    // What the account does not have is left out by the server.
    scope: "sandpen:read sandpen:run sandpen:admin",
    resource: location.origin,
    state: pending.state,
    code_challenge: base64url(new Uint8Array(digest)),
    code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(parameters)) address.searchParams.set(name, value);
  location.assign(address.href);
}

/** The code in our address for a token. Nothing happens when there is none. */
export async function finish(): Promise<void> {
  const said = new URLSearchParams(location.search);
  const written = sessionStorage.getItem(PENDING);
  if (!said.has("state")) return;
  sessionStorage.removeItem(PENDING);
  const pending = written ? (JSON.parse(written) as Pending) : null;
  // A code is good once, and must not be in the history.
  history.replaceState(null, "", `/${pending?.place ?? ""}`);
  // Somebody else's page may have sent the reader here with a code of its own.
  if (!pending || said.get("state") !== pending.state) throw new Error("this sign-in was not begun here");
  const refusal = said.get("error");
  if (refusal) throw new Error(said.get("error_description") ?? refusal);
  const { issuer, token_endpoint } = await metadata();
  if (said.has("iss") && said.get("iss") !== issuer) throw new Error("another server has answered the sign-in");
  await exchange(token_endpoint, {
    grant_type: "authorization_code",
    code: said.get("code") ?? "",
    redirect_uri: redirect(),
    code_verifier: pending.verifier,
  });
}

async function exchange(address: string, parameters: Record<string, string>): Promise<void> {
  const answer = await fetch(address, {
    method: "POST",
    headers: { "content-type": "application/x-www-form-urlencoded", accept: "application/json" },
    body: new URLSearchParams({ ...parameters, client_id: CLIENT, resource: location.origin }),
  });
  const given = (await answer.json().catch(() => ({}))) as {
    access_token?: string;
    refresh_token?: string;
    error_description?: string;
  };
  if (!answer.ok || !given.access_token) throw new Error(given.error_description ?? "the sign-in was refused");
  keep(given.access_token);
  if (given.refresh_token) sessionStorage.setItem(REFRESH, given.refresh_token);
}

let refreshing: Promise<boolean> | null = null;

/** Whether there is a newer token than the one that was refused. All who ask at once share one question. */
export function refresh(): Promise<boolean> {
  refreshing ??= (async () => {
    const value = sessionStorage.getItem(REFRESH);
    if (!value) return false;
    // It is good once.
    sessionStorage.removeItem(REFRESH);
    const { token_endpoint } = await metadata();
    await exchange(token_endpoint, { grant_type: "refresh_token", refresh_token: value });
    return true;
  })()
    .catch(() => false)
    .finally(() => {
      refreshing = null;
    });
  return refreshing;
}

/** What was given is taken back where the server can; in any case this tab has it no more. */
export async function leave(byOAuth: boolean): Promise<void> {
  // With the one that others come from, those end too.
  const value = sessionStorage.getItem(REFRESH) ?? token();
  forget();
  if (!value || !byOAuth) return;
  try {
    const { revocation_endpoint } = await metadata();
    if (!revocation_endpoint || new URL(revocation_endpoint, location.href).origin !== location.origin) return;
    await fetch(revocation_endpoint, { method: "POST", body: new URLSearchParams({ token: value, client_id: CLIENT }) });
  } catch {
    // It is forgotten here, and ends by itself there.
  }
}

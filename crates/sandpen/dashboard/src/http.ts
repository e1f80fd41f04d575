// Questions to /api/ with the token of this tab, and streams of events that need a header and so no EventSource.

import { forget, refresh, token } from "./session.ts";
import type { Failure } from "./types.ts";

/** What went wrong, in the server's words. */
export class Trouble extends Error {
  readonly kind: string;
  readonly hint: string | null;

  constructor(failure: Failure) {
    super(failure.message);
    this.kind = failure.kind;
    this.hint = failure.hint ?? null;
  }
}

let signedOut: () => void = () => {};

/** Called when the server does not know the token any more. */
export function onSignedOut(action: () => void): void {
  signedOut = action;
}

async function once(path: string, options: RequestInit): Promise<Response> {
  const headers = new Headers(options.headers);
  const shown = token();
  if (shown) headers.set("authorization", `Bearer ${shown}`);
  try {
    return await fetch(path, { ...options, headers, cache: "no-store", redirect: "error", credentials: "omit" });
  } catch (cause) {
    if (options.signal?.aborted) throw cause;
    throw new Trouble({ kind: "unavailable", message: "the server does not answer" });
  }
}

export async function ask(path: string, options: RequestInit = {}): Promise<Response> {
  let answer = await once(path, options);
  if (answer.status === 401 && (await refresh())) answer = await once(path, options);
  if (answer.ok) return answer;
  const said = (await answer.json().catch(() => null)) as { error?: Failure | string } | null;
  const error = said?.error;
  const failure = typeof error === "object" ? error : { kind: "failed", message: error ?? `status ${answer.status}` };
  if (answer.status === 401) {
    forget();
    signedOut();
  }
  throw new Trouble(failure);
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await ask(path, signal ? { signal } : {})).json() as Promise<T>;
}

export async function send<T>(method: string, path: string, value?: unknown): Promise<T> {
  const body = value === undefined ? {} : { body: JSON.stringify(value), headers: { "content-type": "application/json" } };
  return (await ask(path, { method, ...body })).json() as Promise<T>;
}

export interface Told {
  event: string;
  data: unknown;
}

/** The events of an answer, until it ends or is given up. */
export async function* events(answer: Response): AsyncGenerator<Told> {
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const parts = (rest + value).split("\n\n");
      rest = parts.pop() ?? "";
      for (const part of parts) {
        const lines = part.split("\n");
        const field = (name: string) => lines.find((line) => line.startsWith(`${name}: `))?.slice(name.length + 2);
        const data = field("data");
        // What has no data is a sign of life.
        if (data !== undefined) yield { event: field("event") ?? "message", data: JSON.parse(data) };
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

export function bytes(base64: string): Uint8Array<ArrayBuffer> {
  return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
}

export function words(error: unknown): string {
  if (error instanceof Trouble && error.hint) return `${error.message}: ${error.hint}`;
  return error instanceof Error ? error.message : String(error);
}

// What /api/ answers with.

export interface Failure {
  kind: string;
  message: string;
  hint?: string | null;
}

export type SignIn = "none" | "token" | "oauth";

export interface Rights {
  run: boolean;
  create: boolean;
  stop: boolean;
  stop_runs: boolean;
  open_terminals: boolean;
  read_files: boolean;
  write_files: boolean;
  delete_files: boolean;
  see_all: boolean;
  read_audit: boolean;
}

export interface Session {
  signed_in: true;
  sign_in: SignIn;
  owner: string;
  scopes: string[];
  version: string;
  profile: string | null;
  audit_trail: boolean;
  may: Rights;
}

export type SessionAnswer = Session | { signed_in: false; sign_in: SignIn };

export interface Usage {
  cpu_ms: number | null;
  memory_bytes: number | null;
  peak_memory_bytes: number | null;
  processes: number | null;
  disk_bytes: number | null;
  network: { connections: number; refused: number; bytes_in: number; bytes_out: number } | null;
}

/** What the server has looked at by itself. */
export interface PastUsage {
  every_ms: number;
  samples: { at_ms: number; cpu_ms: number | null; memory_bytes: number | null }[];
}

export interface Sandbox {
  id: string;
  owner: string;
  own: boolean;
  name: string | null;
  image: string;
  state: string;
  persistent: boolean;
  created_at: string;
  expires_at: string | null;
  cpus: number;
  memory_bytes: number;
  disk_bytes: number;
  processes: number;
  network: string;
  work_directory: string;
  running: number;
  usage: Usage | null;
}

export interface Artifact {
  path: string;
  mime_type: string;
  bytes: number;
}

export interface Run {
  id: string;
  sandbox_id: string;
  sandbox_kept: boolean;
  title: string;
  started_at: string;
  state: string;
  exit_code: number | null;
  signal: number | null;
  error: Failure | null;
  usage: { wall_ms: number; cpu_ms: number; peak_memory_bytes: number } | null;
  artifacts: Artifact[];
  artifacts_left_out: number;
}

export interface State {
  at_ms: number;
  sandboxes: Sandbox[];
  runs: Run[];
}

export interface Language {
  name: string;
  title: string;
  version: string | null;
}

export interface Entry {
  name: string;
  kind: string;
  bytes: number;
  modified: string | number | null;
}

export interface AuditLine {
  number: number;
  time: string;
  event: string;
  owner?: string;
  sandbox?: string;
  previous: string;
  [detail: string]: unknown;
}

export interface AuditPage {
  lines: (AuditLine | null)[];
  older: number | null;
  unbroken: boolean;
}

// The parts of the native API's answers that the dashboard reads. docs/http.md describes them.

export type Concern = "well" | "working" | "handled" | "person";

export interface Caller {
  name: string;
  role: "admin" | "client" | "worker";
  tenant: string | null;
  needs_token: boolean;
}

export interface Hold {
  job: string;
  attempt: number;
  progress: number;
  phase: string;
}

export interface Tile {
  id: string;
  machine: string;
  fleet: string | null;
  concern: Concern;
  availability: string;
  text: string;
  slots: number;
  holds: Hold[];
  seen_at: string;
}

export interface Progress {
  value?: number;
  nodes_done?: number;
  nodes_total?: number;
  current_node?: string;
  current_node_class?: string;
  step?: number;
  steps?: number;
  message?: string;
}

export interface RunningJob {
  id: string;
  worker: string;
  attempt: number;
  tenant: string | null;
  started_at: string;
  progress: number;
  phase: string;
  live?: Progress;
  has_preview: boolean;
}

export interface Overview {
  version: string;
  now: string;
  summary: { concern: Concern; text: string };
  numbers: {
    waiting: number;
    oldest: { job: string; waits_millis: number; reason: string } | null;
    running: number;
    failed_in_hour: number;
    completed_in_hour: number;
    per_hour_dollars: number;
    has_fleets: boolean;
  };
  workers: Tile[];
  workers_total: number;
  workers_by_concern: Record<Concern, number>;
  running: RunningJob[];
  running_total: number;
}

export interface NumberHistory {
  now: string;
  every_seconds: number;
  kept_seconds: number;
  samples: {
    at: string;
    waiting: number;
    running: number;
    oldest_wait_millis: number;
    per_hour_dollars: number;
  }[];
  ends: { at: string; completed: number; failed: number }[];
}

export type JobState = "queued" | "running" | "completed" | "failed" | "cancelled";

export interface Job {
  id: string;
  state: JobState;
  reason: string;
  tenant: string;
  priority: number;
  service: string;
  shape: string;
  workflow_hash: string;
  attempt: number;
  failures: number;
  infra_failures: number;
  accepted_at: string;
  changed_at: string;
  deadline?: string;
  worker?: string;
  labels?: Record<string, string>;
  metadata?: Record<string, unknown>;
  needs?: { models?: string[]; classes?: string[]; labels?: Record<string, string>; vram_bytes?: number; pin?: string };
  options?: Record<string, unknown>;
  idempotency_key?: string;
  service_status?: string;
  progress?: Progress;
  outputs?: unknown[];
  result?: unknown;
}

export interface JobPage {
  jobs: Job[];
  next: string | null;
  brake: string | null;
}

export interface Attempt {
  attempt: number;
  worker: string;
  started_at: string;
  ended_at?: string;
  cause?: string;
  verdict?: string;
  message?: string;
  fault?: string;
  node?: { id: string; class?: string; exception?: string };
  took_down?: unknown;
  out_of_memory?: number;
  requested_memory?: number;
  price?: number;
  service?: {
    service_job_id?: string;
    service_submitted_at?: string | null;
    last_service_check?: string | null;
    service_status?: string;
  };
}

export interface Why {
  job: string;
  state: JobState;
  reason: string;
  attempts: Attempt[];
  failures: number;
  infra_failures: number;
  candidates: { worker: string; passed_over?: string }[];
  blocks?: {
    worker: string;
    scope: string;
    shape: string;
    is_blocked: boolean;
    until: string;
    failures: number;
    reason: string;
  }[];
}

export interface Worker {
  id: string;
  machine: string;
  fleet?: string;
  state: string;
  presence: string;
  availability: string;
  concern: Concern;
  incarnation: number;
  services: string[];
  slots: number;
  holds: Hold[];
  seen_at: string;
  seen_millis_ago: number;
  joined_at: string;
  reason: string;
  unavailable_reason?: string;
  completed: number;
  failed: number;
  lost: number;
  went_stale: number;
  reliability: Record<string, unknown>;
  unreliable?: boolean;
  labels: Record<string, string>;
  metrics: Record<string, unknown>;
  probation_until?: string;
}

export interface Machine {
  machine: string;
  is_rented: boolean;
  fleet: string | null;
  state: string | null;
  presence: string;
  workers: string[];
  since: string | null;
  reason: string | null;
  gpu: string | null;
  phase?: string;
  price_dollars?: number | null;
  cost_dollars?: number;
  waiting?: { text: string } | null;
  unreliable: boolean;
}

export interface Block {
  worker: string;
  scope: string;
  shape: string;
  failures: number;
  is_blocked: boolean;
  until: string;
  workflow_hash: string;
  tenant: string | null;
  cause: string | null;
  reason: string;
}

export interface Quarantined {
  shape: string;
  tenant: string;
  is_quarantined: boolean;
  failed_on: string[];
  trial_at: string | null;
  trials_failed: number;
  reason: string;
}

export interface WorkflowUse {
  shape: string;
  jobs: number;
  waiting: number;
  running: number;
  completed: number;
  failed: number;
  cancelled: number;
  services: string[];
  models: string[];
  tenants: string[];
  workers: Record<string, { completed: number; failed: number }>;
  last_job: string | null;
  last_at: string;
  run_millis: { shortest: number; median: number; slow: number; longest: number } | null;
}

export interface WorkflowList {
  workflows: WorkflowUse[];
  jobs_looked_at: number;
  since: string | null;
  is_all: boolean;
}

/** A stored event, or a live one, which has no number. */
export interface PlaneEvent {
  seq?: number;
  at?: string;
  name: string;
  job?: string | null;
  worker?: string | null;
  tenant?: string | null;
  metadata?: Record<string, unknown>;
  detail?: Record<string, unknown>;
  progress?: number;
  phase?: string;
}

// Events in plain words, for the feed. An event that tells a person nothing is left out there; the page of events has all.

import type { ComponentChildren } from "preact";
import { duration } from "./format";
import { JobLink, ShapeLink, WorkerLink } from "./parts/basics";
import type { Concern, PlaneEvent } from "./types";

export interface EventText {
  concern: Concern;
  text: ComponentChildren;
}

const text = (value: unknown): string => (typeof value === "string" ? value : value == null ? "" : String(value));

/** The first line of a message, short enough for a row. */
export function firstLine(message: string, max = 110): string {
  const line = message.split("\n")[0] ?? "";
  return line.length > max ? `${line.slice(0, max - 1)}…` : line;
}

/** What Remuda did or noticed; `null` if it is only the ordinary run of a job. */
export function describe(event: PlaneEvent, before: PlaneEvent[] = []): EventText | null {
  const detail = event.detail ?? {};
  const reason = firstLine(text(detail.reason));
  const because = reason && <span class="muted">: {reason}</span>;
  const job = event.job ? <JobLink id={event.job} /> : null;
  const worker = event.worker ? <WorkerLink id={event.worker} /> : null;
  const machine = text(detail.machine);
  const fleet = text(detail.fleet);
  const handled = (content: ComponentChildren): EventText => ({ concern: "handled", text: content });
  const well = (content: ComponentChildren): EventText => ({ concern: "well", text: content });
  const person = (content: ComponentChildren): EventText => ({ concern: "person", text: content });
  switch (event.name) {
    case "job:queued":
    case "job:completed":
      return null;
    case "job:started": {
      if (Number(detail.attempt) < 2) return null;
      const lost = before.find((other) => other.job === event.job && other.name === "job:retrying");
      const from = lost?.worker && lost.worker !== event.worker ? <WorkerLink id={lost.worker} /> : null;
      const why = firstLine(text(lost?.detail?.reason), 80);
      return {
        concern: "working",
        text: (
          <>
            Job {job} {from ? <>moved from {from} to</> : "started again on"} {worker}
            {why && <span class="muted"> ({why})</span>}
          </>
        ),
      };
    }
    case "job:retrying":
      return handled(<>Job {job} is tried again{worker && <> after {worker}</>}{because}</>);
    case "job:recovered":
      return handled(<>Job {job} was found complete on {worker}{because}</>);
    case "job:failed":
      return person(<>Job {job} failed{worker && <> on {worker}</>}{because}</>);
    case "job:cancelled":
      return well(<>Job {job} was cancelled{because}</>);
    case "worker:online":
      return well(<>{worker} {detail.incarnation ? "joined" : "is back"}</>);
    case "worker:offline":
      return person(<>{worker} went offline{because}</>);
    case "worker:state":
      if (detail.available !== false) return well(<>{worker} takes work again{because}</>);
      return handled(<>{worker} {detail.state === "active" ? "takes no work" : `is ${text(detail.state)}`}{because}</>);
    case "worker:unreliable":
      return person(<>{worker} went silent {text(detail.stale_in_an_hour)} times within an hour</>);
    case "worker:warning":
      return handled(<>{worker} warns{because}</>);
    case "worker:forgotten":
      return well(<>{worker} was forgotten after a long absence</>);
    case "client:state":
      return null;
    case "client:blocked_workflow":
      return handled(<>{worker} gets no jobs of workflow <ShapeLink shape={text(detail.shape)} /> for a while{because}</>);
    case "client:unblocked_workflow":
      return well(<>{worker} may run workflow <ShapeLink shape={text(detail.shape)} /> again{because}</>);
    case "workflow:quarantined":
      return handled(<>Workflow <ShapeLink shape={text(detail.shape)} /> failed on several workers: it runs one job at a time</>);
    case "workflow:released":
      return well(<>Workflow <ShapeLink shape={text(detail.shape)} /> left quarantine{because}</>);
    case "affinity:set":
    case "affinity:removed":
      return well(<>Placement of workflow <ShapeLink shape={text(detail.shape)} /> was changed</>);
    case "machine:state": {
      const state = text(detail.state);
      const concern: Concern = state === "offline" || state === "suspect" ? "handled" : "well";
      return { concern, text: <>Machine {machine} is {state}{because}</> };
    }
    case "machine:unreliable":
      return person(<>Machine {machine} went silent {text(detail.stale_in_an_hour)} times within an hour</>);
    case "machine:orphan":
      return handled(<>A pod of fleet {fleet} that no record knows is returned{because}</>);
    case "machine:alarm":
      return person(<>Machine {machine} cannot be returned{because}</>);
    case "scale:up":
      return handled(<>{text(detail.count)} machines rented{fleet && <> for {fleet}</>}{because}</>);
    case "scale:down":
      return well(<>{text(detail.count)} machines returned{fleet && <> of {fleet}</>}{because}</>);
    case "fleet:order":
      return well(<>Fleet {fleet}: {text(detail.order)} was ordered</>);
    case "fleet:fault":
      return handled(<>The provider of fleet {fleet} refused a call{because}</>);
    case "fleet:doubt":
      return handled(<>A list of the provider of fleet {fleet} is not believed{because}</>);
    case "fleet:brake":
      return handled(<>The mass-loss brake is on{because}</>);
    case "fleet:brake_released":
      return well(<>The mass-loss brake is off: silent workers are judged again</>);
    case "webhook:delivered":
      return null;
    case "webhook:given_up":
      return person(<>The webhook of job {job} could not be delivered{because}</>);
    case "plane:settings":
      return well(<>The settings were read again</>);
    case "plane:away":
      return handled(<>The plane was away for {duration(Number(detail.millis))}: every worker gets a full lease</>);
    default:
      return well(<>{event.name}{because}</>);
  }
}

/** Every event in words, for the page of events. */
export function describeAny(event: PlaneEvent): EventText {
  const known = describe(event);
  if (known) return known;
  const job = event.job ? <JobLink id={event.job} /> : null;
  const worker = event.worker ? <WorkerLink id={event.worker} /> : null;
  const detail = event.detail ?? {};
  switch (event.name) {
    case "job:queued":
      return { concern: "well", text: <>Job {job} was accepted</> };
    case "job:started":
      return { concern: "working", text: <>Job {job} started on {worker}</> };
    case "job:completed":
      return { concern: "well", text: <>Job {job} completed{worker && <> on {worker}</>}{detail.millis != null && <span class="muted"> in {duration(Number(detail.millis))}</span>}</> };
    case "webhook:delivered":
      return { concern: "well", text: <>The webhook of job {job} was delivered</> };
    case "client:state":
      return { concern: "well", text: <>{worker} is {text(detail.presence)}, {text(detail.state)}</> };
    default:
      return { concern: "well", text: event.name };
  }
}

const VERDICTS: Record<string, string> = {
  completed: "completed",
  failed: "the service reported a failure",
  stopped: "the worker stopped it, because it stops itself",
  rejected: "the worker had no free slot",
  cancelled: "cancelled",
  expired: "the deadline passed",
  worker_silent: "the worker sent no beat within its lease",
  worker_restarted: "a new process of the worker joined without it",
  worker_left: "the worker left",
  worker_failed: "the control cycle gave the worker up",
  no_longer_held: "the worker no longer has it",
  never_received: "the worker never received the order",
  stuck: "it made no progress",
  start_limit: "it did not start within the job's own limit",
  node_limit: "it made no progress within the job's own limit",
  drain_overdue: "it was not done when the drain of its worker ended",
  machine_lost: "its machine is gone",
  machine_refused: "its machine is not what was ordered",
};

const CAUSES: Record<string, string> = {
  job: "the job itself: another worker would probably fail too",
  worker: "the worker",
  service: "the service on the worker",
  provider: "the provider or a planned end: no one's fault",
  plane: "the plane itself",
};

const FAULTS: Record<string, string> = {
  graph: "the graph is invalid on every worker",
  node: "a node raised an error",
  missing: "this server lacks a model, a node class or a file",
  memory: "it ran out of memory",
  device: "the device or its context is broken",
  disk: "no disk space was left",
  lost: "the service forgot it, or lost its outputs",
  died: "the service died or restarted meanwhile",
  crashed: "the service crashed while it had only this attempt",
  killed: "the service was ended from outside",
};

export const verdictWords = (verdict: string | undefined) => (verdict ? (VERDICTS[verdict] ?? verdict) : "");
export const causeWords = (cause: string | undefined) => (cause ? (CAUSES[cause] ?? cause) : "");
export const faultWords = (fault: string | undefined) => (fault ? (FAULTS[fault] ?? fault) : "");

/** What a worker's availability means. */
export const AVAILABILITY: Record<string, string> = {
  ready: "takes work",
  starting: "starting: not ready for work yet",
  draining: "draining: it finishes what it holds and gets nothing new",
  terminated: "it has left",
  failed: "given up by the control cycle",
  suspect: "beats are missing: it gets no new work and keeps what it holds",
  offline: "no beats: its jobs were moved",
  unheard: "it has not sent a beat since the plane started",
  disconnected: "it closed its connection and has not been heard since",
  probation: "on probation: it failed with several workflows, and gets one job at a time later",
  sick: "it takes no work by its own report",
};


// One job: what happened to it and why, what it makes, and what can be done about it.

import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { act, isAdmin } from "../api";
import { bytes, clockTime, duration, exactTime, shortId } from "../format";
import { ask, signed } from "../parts/dialog";
import { Ago, Bar, ConcernIcon, Copy, Json, Loading, Problem, Section, ShapeLink, Since, StatePill, WorkerLink } from "../parts/basics";
import { Graph, readGraph } from "../parts/graph";
import { findFiles, Outputs } from "../parts/outputs";
import { Preview } from "../parts/preview";
import { useResource } from "../resource";
import { go, link, withQuery } from "../route";
import { causeWords, faultWords, verdictWords } from "../words";
import type { Attempt, Concern, Job, Overview, Why } from "../types";

export function JobPage({ id }: { id: string }) {
  const path = `/remuda/v1/jobs/${id}`;
  const { data: job, error } = useResource<Job>(path, 10);
  const { data: why } = useResource<Why>(`${path}/why`, 10);
  const { data: workflow } = useResource<unknown>(`${path}/workflow`, 3600);
  const overview = useResource<Overview>(isAdmin() ? "/remuda/v1/overview" : null, 5).data;
  const hasPreview = overview?.running.some((running) => running.id === id && running.has_preview) ?? false;
  const nodes = useMemo(() => readGraph(workflow), [workflow]);
  if (error && !job) return <NoSuchJob message={error.message} />;
  if (!job) return <Loading lines={10} />;
  const last = why?.attempts.at(-1);
  const files = findFiles(job.result ?? job.outputs ?? null);
  const isOpen = job.state === "queued" || job.state === "running";
  return (
    <article class="job" data-state={job.state}>
      <header class="job-head">
        <div>
          <h1>
            Job <Copy text={job.id}><span class="mono">{shortId(job.id)}</span></Copy>
          </h1>
          <StatePill state={job.state} isRetry={job.attempt > 0} />
        </div>
        <Actions job={job} />
      </header>
      <p class="job-reason">{job.reason}</p>
      {job.state === "running" && <Bar value={job.progress?.value ?? 0} label="progress" />}
      <div class="job-columns">
        <Section title="Timeline">{why ? <Timeline job={job} why={why} /> : <Loading />}</Section>
        <div>
          {job.state === "running" && (
            <Section title="Preview">
              <Preview job={job.id} hasPreview={hasPreview} large />
              <p class="muted">{job.progress?.message ?? job.progress?.current_node_class ?? "The first preview has not come yet."}</p>
            </Section>
          )}
          {files.length > 0 && (
            <Section title={isOpen ? "Outputs so far" : "Outputs"}>
              <Outputs files={files} />
            </Section>
          )}
          {last?.message && job.state === "failed" && (
            <Section title="Error">
              <ErrorText message={last.message} attempt={last} />
            </Section>
          )}
          {nodes && (
            <Section title="Workflow" aside={isAdmin() ? <ShapeLink shape={job.shape} /> : null}>
              <Graph
                nodes={nodes}
                running={job.state === "running" ? job.progress?.current_node : undefined}
                failing={job.state === "failed" || job.state === "queued" ? last?.node?.id : undefined}
                isDone={job.state === "completed"}
              />
            </Section>
          )}
        </div>
      </div>
      {why && why.candidates.length > 0 && <Candidates why={why} />}
      <Facts job={job} why={why} />
      <Section title="Raw">
        <details>
          <summary>Job as JSON</summary>
          <Json value={job} />
        </details>
        <details>
          <summary>Workflow as submitted</summary>
          <Json value={workflow} />
        </details>
      </Section>
    </article>
  );
}

function NoSuchJob({ message }: { message: string }) {
  return (
    <>
      <Problem message={message} />
      <p>
        <a href={link("jobs")}>All jobs</a>
      </p>
    </>
  );
}

function Actions({ job }: { job: Job }) {
  const isOpen = job.state === "queued" || job.state === "running";
  const name = shortId(job.id);
  const cancel = () =>
    ask({
      title: `Cancel job ${name}`,
      consequence:
        job.state === "running" ? (
          <p>
            It runs on {job.worker}, which is told to stop it. What it made so far is lost. This cannot be undone; you can run
            it again as a new job.
          </p>
        ) : (
          <p>It waits and will not be started. This cannot be undone; you can run it again as a new job.</p>
        ),
      verb: "Cancel the job",
      isDangerous: true,
      withReason: true,
      run: async (reason) => {
        await act("POST", `/remuda/v1/jobs/${job.id}/cancel`, { reason: signed(reason, "cancelled") });
        return `Job ${name} is cancelled.`;
      },
    });
  const retry = () =>
    ask({
      title: `Run job ${name} again`,
      consequence: <p>A new job with the same workflow and options is submitted. This one stays as it is.</p>,
      verb: "Run it again",
      run: async () => {
        const { id } = await act<{ id: string }>("POST", `/remuda/v1/jobs/${job.id}/retry`);
        go(link("jobs", id));
        return `It runs again as job ${shortId(id)}.`;
      },
    });
  const curl = `curl -X POST ${location.origin}/remuda/v1/jobs -H 'Content-Type: application/json' -d "$(curl -s ${location.origin}/remuda/v1/jobs/${job.id}/workflow | jq '{workflow: ., tenant: "${job.tenant}", priority: ${job.priority}}')"`;
  const cli = `remuda jobs retry ${job.id} --url ${location.origin}`;
  return (
    <div class="buttons">
      {isOpen ? (
        <button type="button" class="dangerous" onClick={cancel}>
          Cancel…
        </button>
      ) : (
        <button type="button" onClick={retry}>
          Run again…
        </button>
      )}
      <Copy text={curl} title="copy a curl command that submits the same workflow">
        Copy as curl
      </Copy>
      <Copy text={cli} title="copy the command">
        Copy as CLI
      </Copy>
      <Copy text={location.href} title="copy the address of this page">
        Copy link
      </Copy>
    </div>
  );
}

interface Step {
  at: string;
  concern: Concern;
  title: ComponentChildren;
  detail?: ComponentChildren;
  /** Until when, for how long it took. */
  until?: string;
}

/** Accepted, waited, attempt by attempt, ended. */
function stepsOf(job: Job, why: Why): Step[] {
  const steps: Step[] = [{ at: job.accepted_at, concern: "well", title: "Accepted and stored" }];
  let waitsSince = job.accepted_at;
  for (const attempt of why.attempts) {
    steps.push({ at: waitsSince, until: attempt.started_at, concern: "well", title: waitsSince === job.accepted_at ? "Waited for a worker" : "Waited for another try" });
    steps.push(...attemptSteps(attempt));
    waitsSince = attempt.ended_at ?? attempt.started_at;
  }
  if (job.state === "queued") {
    const concern = why.attempts.length ? "handled" : "well";
    steps.push({ at: waitsSince, concern, title: <>Waits for <Since at={waitsSince} /></>, detail: <p>{job.reason}</p> });
  }
  if (job.state === "failed") steps.push({ at: job.changed_at, concern: "person", title: "Failed for good", detail: <p>{firstLines(job.reason)}</p> });
  if (job.state === "cancelled") steps.push({ at: job.changed_at, concern: "well", title: "Cancelled", detail: <p>{job.reason}</p> });
  if (job.state === "completed") steps.push({ at: job.changed_at, concern: "well", title: <>Completed <span class="muted">after {duration(Date.parse(job.changed_at) - Date.parse(job.accepted_at))}</span></> });
  return steps;
}

function attemptSteps(attempt: Attempt): Step[] {
  const { service } = attempt;
  const where = <WorkerPlace id={attempt.worker} />;
  const steps: Step[] = [
    { at: attempt.started_at, concern: "working", title: <>Attempt {attempt.attempt} on {where}</> },
  ];
  if (service?.service_submitted_at) {
    steps.push({ at: service.service_submitted_at, concern: "working", title: "Submitted to its service", detail: <p class="muted mono">{service.service_job_id}</p> });
  }
  if (!attempt.ended_at) {
    steps.push({ at: attempt.started_at, concern: "working", title: <>Runs for <Since at={attempt.started_at} /></>, detail: service?.last_service_check ? <p class="muted">its service was last asked <Ago at={service.last_service_check} />: {service.service_status}</p> : undefined });
    return steps;
  }
  const isGood = attempt.verdict === "completed";
  steps.push({
    at: attempt.ended_at,
    concern: isGood ? "well" : attempt.verdict === "cancelled" ? "well" : "handled",
    title: isGood ? <>Attempt {attempt.attempt} completed</> : <>Attempt {attempt.attempt} ended: {verdictWords(attempt.verdict)}</>,
    detail: isGood ? undefined : <Evidence attempt={attempt} />,
  });
  return steps;
}

function WorkerPlace({ id }: { id: string }) {
  return isAdmin() ? <WorkerLink id={id} /> : <>{id}</>;
}

function Evidence({ attempt }: { attempt: Attempt }) {
  const rows: [string, ComponentChildren][] = [];
  if (attempt.message) rows.push(["said", firstLines(attempt.message)]);
  if (attempt.cause) rows.push(["at fault", causeWords(attempt.cause)]);
  if (attempt.fault) rows.push(["evidence", faultWords(attempt.fault)]);
  if (attempt.node) rows.push(["node", `${attempt.node.id}${attempt.node.class ? ` (${attempt.node.class})` : ""}${attempt.node.exception ? `: ${attempt.node.exception}` : ""}`]);
  if (attempt.out_of_memory) rows.push(["memory", `ran out of ${bytes(attempt.out_of_memory)}${attempt.requested_memory ? `, asked for ${bytes(attempt.requested_memory)}` : ""}`]);
  if (attempt.service?.last_service_check) rows.push(["last probe", <><Ago at={attempt.service.last_service_check} />: {attempt.service.service_status}</>]);
  return (
    <dl class="evidence">
      {rows.map(([name, value]) => (
        <>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </>
      ))}
    </dl>
  );
}

function firstLines(message: string): string {
  return message.split("\n").slice(0, 3).join(" ").slice(0, 300);
}

function Timeline({ job, why }: { job: Job; why: Why }) {
  return (
    <ol class="timeline">
      {stepsOf(job, why).map((step, n) => (
        <li key={n} class={step.concern}>
          <ConcernIcon concern={step.concern} />
          <div>
            <div class="step-head">
              <span>{step.title}</span>
              <time class="muted" dateTime={step.at} title={exactTime(step.at)}>
                {step.until ? duration(Date.parse(step.until) - Date.parse(step.at)) : clockTime(step.at)}
              </time>
            </div>
            {step.detail}
          </div>
        </li>
      ))}
    </ol>
  );
}

function ErrorText({ message, attempt }: { message: string; attempt: Attempt }) {
  const [first, ...rest] = message.split("\n");
  return (
    <div class="error-text">
      <p>
        <ConcernIcon concern="person" /> {first}
      </p>
      {attempt.node && (
        <p class="muted">
          in node {attempt.node.id} {attempt.node.class}
        </p>
      )}
      {rest.length > 0 && (
        <details>
          <summary>The rest ({rest.length} lines)</summary>
          <pre tabIndex={0}>{rest.join("\n")}</pre>
        </details>
      )}
    </div>
  );
}

function Candidates({ why }: { why: Why }) {
  return (
    <Section title="Why it waits">
      <div class="table-frame" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">Worker</th>
              <th scope="col" class="wide">
                Could it take this job?
              </th>
            </tr>
          </thead>
          <tbody>
            {why.candidates.slice(0, 100).map((candidate) => (
              <tr key={candidate.worker}>
                <td>
                  <WorkerPlace id={candidate.worker} />
                </td>
                <td class="wide">{candidate.passed_over ? `no: it ${candidate.passed_over.replace(/^it /, "")}` : "yes, now"}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {why.blocks?.map((block) => (
        <p key={block.worker + block.scope}>
          <WorkerPlace id={block.worker} /> {block.is_blocked ? "does not get it" : "has failed with it"} ({block.reason}) until{" "}
          <Ago at={block.until} />.
        </p>
      ))}
    </Section>
  );
}

function Facts({ job, why }: { job: Job; why: Why | null }) {
  const cost = costOf(why?.attempts ?? []);
  const retryOf = job.options?.retry_of as string | undefined;
  const rows: [string, ComponentChildren][] = [
    ["id", <Copy text={job.id}><span class="mono">{job.id}</span></Copy>],
    ["tenant", isAdmin() ? <a href={withQuery(link("jobs"), { tenant: job.tenant })}>{job.tenant}</a> : job.tenant],
    ["priority", job.priority],
    ["service", job.service],
    ["accepted", <Ago at={job.accepted_at} />],
    ["attempts", `${job.attempt} (${job.failures} failed by the job itself, ${job.infra_failures} for other reasons)`],
  ];
  if (job.deadline) rows.push(["deadline", <Ago at={job.deadline} />]);
  if (job.needs?.models?.length) rows.push(["models", job.needs.models.join(", ")]);
  if (cost !== null) rows.push(["cost", cost]);
  if (retryOf) rows.push(["run again from", <a href={link("jobs", retryOf)} class="mono">{shortId(retryOf)}</a>]);
  if (job.idempotency_key) rows.push(["idempotency key", <span class="mono">{job.idempotency_key}</span>]);
  for (const [key, value] of Object.entries(job.labels ?? {})) {
    rows.push([`label ${key}`, <a href={withQuery(link("jobs"), { search: `${key}=${value}` })}>{value}</a>]);
  }
  for (const [key, value] of Object.entries(job.metadata ?? {})) rows.push([`metadata ${key}`, JSON.stringify(value)]);
  return (
    <Section title="Facts">
      <dl class="facts">
        {rows.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
    </Section>
  );
}

/** By the hourly price of the slots it had; `null` if no machine was rented for it. */
function costOf(attempts: Attempt[]): string | null {
  const priced = attempts.filter((attempt) => attempt.price != null && attempt.ended_at);
  if (priced.length === 0) return null;
  const micros = priced.reduce((sum, attempt) => sum + (attempt.price! * (Date.parse(attempt.ended_at!) - Date.parse(attempt.started_at))) / 3_600_000, 0);
  return `$${(micros / 1e6).toFixed(4)}`;
}


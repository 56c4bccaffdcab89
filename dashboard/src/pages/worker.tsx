// One worker: how it is, what it runs, how it did, what it has.

import type { ComponentChildren } from "preact";
import { bytes, count, duration, percent } from "../format";
import { Ago, Bar, Copy, Empty, Json, JobLink, Loading, Pill, Problem, Section, ShapeLink } from "../parts/basics";
import { askDrain } from "../parts/drain";
import { askLift } from "../parts/lift";
import { useResource } from "../resource";
import { link, withQuery } from "../route";
import { AVAILABILITY, describeAny } from "../words";
import type { Block, PlaneEvent, Worker } from "../types";

export function WorkerPage({ id }: { id: string }) {
  const name = encodeURIComponent(id);
  const { data: worker, error } = useResource<Worker>(`/remuda/v1/workers/${name}`, 5);
  const blocks = useResource<{ blocks: Block[] }>("/remuda/v1/blocks", 15).data?.blocks ?? [];
  const events = useResource<{ events: PlaneEvent[] }>(`/remuda/v1/events/recent?worker=${name}&limit=40`, 15).data?.events;
  if (error && !worker) return <Problem message={error.message} />;
  if (!worker) return <Loading lines={8} />;
  const own = blocks.filter((block) => block.worker === id);
  return (
    <article class="worker">
      <header class="job-head">
        <div>
          <h1>
            Worker <Copy text={worker.id}>{worker.id}</Copy>
          </h1>
          <Pill concern={worker.concern}>{AVAILABILITY[worker.availability] ?? worker.availability}</Pill>
        </div>
        <div class="buttons">
          {worker.availability !== "draining" && worker.availability !== "terminated" && (
            <button type="button" class="dangerous" onClick={() => askDrain(worker.id, worker.holds)}>
              Drain…
            </button>
          )}
          <a class="button" href={withQuery(link("jobs"), { worker: worker.id })}>
            Its jobs
          </a>
        </div>
      </header>
      <p class="job-reason">{worker.unavailable_reason ?? worker.reason}</p>
      <div class="job-columns">
        <div>
          <Section title="Runs now" aside={`${worker.holds.length} of ${count(worker.slots, "slot")}`}>
            {worker.holds.length === 0 ? (
              <Empty title="Nothing" />
            ) : (
              <ul class="running">
                {worker.holds.map((hold) => (
                  <li class="running-job" key={hold.job} data-row data-href={link("jobs", hold.job)}>
                    <div class="running-text">
                      <div class="running-head">
                        <JobLink id={hold.job} />
                        <span class="muted">attempt {hold.attempt}{hold.phase && `, ${hold.phase}`}</span>
                      </div>
                      <Bar value={hold.progress} label={`progress of job ${hold.job}`} />
                    </div>
                  </li>
                ))}
              </ul>
            )}
          </Section>
          <Section title="Blocked workflows">
            {own.length === 0 ? (
              <Empty title="None: it gets every workflow it can run" />
            ) : (
              <ul class="plain-list">
                {own.map((block) => (
                  <li key={block.scope + block.shape + block.workflow_hash}>
                    <ShapeLink shape={block.shape} /> until <Ago at={block.until} />: {block.reason}{" "}
                    <button type="button" class="plain" onClick={() => askLift(block)}>
                      Lift…
                    </button>
                  </li>
                ))}
              </ul>
            )}
          </Section>
          <Section title="Facts">
            <Facts worker={worker} />
          </Section>
        </div>
        <Section title="What happened to it">
          {!events ? (
            <Loading />
          ) : (
            <ul class="feed">
              {events.map((event) => (
                <li key={event.seq}>
                  <span />
                  <span class="feed-text">{describeAny(event).text}</span>
                  <span class="muted feed-time">
                    <Ago at={event.at} />
                  </span>
                </li>
              ))}
            </ul>
          )}
        </Section>
      </div>
      <Section title="Raw">
        <details>
          <summary>Worker as JSON</summary>
          <Json value={worker} />
        </details>
      </Section>
    </article>
  );
}

function Facts({ worker }: { worker: Worker }) {
  const ended = worker.completed + worker.failed + worker.lost;
  const rows: [string, ComponentChildren][] = [
    ["success rate", `${percent(worker.completed, ended)} of ${count(ended, "attempt")} (${worker.failed} failed, ${worker.lost} lost)`],
    ["last beat", <Ago at={worker.seen_at} />],
    ["joined", <Ago at={worker.joined_at} />],
    ["times joined", worker.incarnation],
    ["went silent", `${worker.went_stale} times${worker.unreliable ? ", too often within the last hour" : ""}`],
    ["services", worker.services.join(", ")],
    ["machine", worker.fleet ? `${worker.machine} of fleet ${worker.fleet}` : worker.machine],
  ];
  if (worker.probation_until) rows.push(["probation until", <Ago at={worker.probation_until} />]);
  for (const [key, value] of Object.entries(worker.labels ?? {})) rows.push([`label ${key}`, value]);
  for (const [key, value] of Object.entries(worker.metrics ?? {})) {
    if (typeof value === "number") rows.push([key.replaceAll("_", " "), metric(key, value)]);
    else if (typeof value === "string") rows.push([key.replaceAll("_", " "), value]);
  }
  return (
    <dl class="facts">
      {rows.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{value}</dd>
        </div>
      ))}
    </dl>
  );
}

function metric(name: string, value: number): string {
  if (name.endsWith("_bytes") || /vram|memory/.test(name)) return value > 1e6 ? bytes(value) : value.toLocaleString();
  if (name.endsWith("_millis")) return duration(value);
  if (name.endsWith("_seconds")) return duration(1000 * value);
  return value.toLocaleString();
}

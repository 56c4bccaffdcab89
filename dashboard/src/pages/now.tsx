// The first page: is it us, is it one worker, is it one workflow, is it money?

import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";
import { planeNow } from "../clock";
import { count, dollars, duration, shortId } from "../format";
import { Bar, Command, ConcernIcon, CONCERN_WORDS, Empty, JobLink, Loading, Pill, Section, Since, WorkerLink } from "../parts/basics";
import { Feed } from "../parts/feed";
import { Preview } from "../parts/preview";
import { Sparkline, type Point } from "../parts/sparkline";
import { useResource } from "../resource";
import { link, withQuery } from "../route";
import type { NumberHistory, Overview, RunningJob, Tile } from "../types";

const HOUR = 3_600_000;
/** Failures are counted by the minute: a bar of ten seconds would be one pixel wide. */
const MINUTE = 60_000;

export function NowPage() {
  const { data } = useResource<Overview>("/remuda/v1/overview", 5);
  const history = useResource<NumberHistory>("/remuda/v1/numbers", 10).data;
  if (!data) return <Loading lines={8} />;
  return (
    <div class="now">
      <h1 class={`sentence ${data.summary.concern}`}>
        <ConcernIcon concern={data.summary.concern} />
        <span>
          <span class="offscreen">{CONCERN_WORDS[data.summary.concern]}: </span>
          {data.summary.text}
        </span>
      </h1>
      <Numbers overview={data} history={history} />
      <div class="columns">
        <div>
          <Workers overview={data} />
          <Running overview={data} />
        </div>
        <Feed />
      </div>
    </div>
  );
}

function Numbers({ overview, history }: { overview: Overview; history: NumberHistory | null }) {
  const { numbers } = overview;
  const { oldest } = numbers;
  const until = history ? Date.parse(history.now) : planeNow();
  const range = { from: until - HOUR, until };
  const samples = history?.samples ?? [];
  const sampled = (value: (sample: NumberHistory["samples"][number]) => number): Point[] =>
    samples.map((sample) => ({ at: Date.parse(sample.at), value: value(sample) }));
  const failures = useMemo(() => perMinute(history, range.from, until), [history]);
  const gap = 3 * 1000 * (history?.every_seconds ?? 10);
  const chart = (points: Point[], label: string, gapMillis = gap) => (
    <Sparkline points={points} {...range} gapMillis={gapMillis} label={label} />
  );
  return (
    <div class="numbers">
      <NumberCard
        title="waiting"
        value={numbers.waiting.toLocaleString()}
        note={oldest ? `oldest ${duration(oldest.waits_millis)}` : "none waits"}
        hint={oldest?.reason}
        href={withQuery(link("jobs"), { state: "queued" })}
        chart={chart(sampled((sample) => sample.waiting), "waiting in the last hour")}
      />
      <NumberCard
        title="running"
        value={numbers.running.toLocaleString()}
        note={`${numbers.completed_in_hour.toLocaleString()} completed in the last hour`}
        href={withQuery(link("jobs"), { state: "running" })}
        chart={chart(sampled((sample) => sample.running), "running in the last hour")}
      />
      <NumberCard
        title="failed in the last hour"
        value={numbers.failed_in_hour.toLocaleString()}
        note={rate(numbers)}
        concern={numbers.failed_in_hour > 0 ? "person" : undefined}
        href={withQuery(link("jobs"), { state: "failed" })}
        chart={chart(failures, "failed each minute in the last hour", HOUR)}
      />
      <NumberCard
        title="dollars per hour"
        value={numbers.has_fleets ? dollars(numbers.per_hour_dollars) : "–"}
        note={numbers.has_fleets ? "rented machines" : "no fleet is configured"}
        href={link("fleet")}
        chart={chart(numbers.has_fleets ? sampled((sample) => sample.per_hour_dollars) : [], "dollars per hour in the last hour")}
      />
    </div>
  );
}

function rate(numbers: Overview["numbers"]): string {
  const ended = numbers.failed_in_hour + numbers.completed_in_hour;
  if (ended === 0) return "no job ended";
  return `of ${count(ended, "job")} that ended`;
}

function perMinute(history: NumberHistory | null, from: number, until: number): Point[] {
  const minutes = new Map<number, number>();
  const first = Math.ceil(from / MINUTE) * MINUTE;
  for (let at = first; at <= until; at += MINUTE) minutes.set(at, 0);
  for (const end of history?.ends ?? []) {
    const at = Math.floor(Date.parse(end.at) / MINUTE) * MINUTE;
    if (minutes.has(at)) minutes.set(at, minutes.get(at)! + end.failed);
  }
  return history ? [...minutes].map(([at, value]) => ({ at, value })) : [];
}

function NumberCard({
  title,
  value,
  note,
  hint,
  href,
  chart,
  concern,
}: {
  title: string;
  value: string;
  note: string;
  hint?: string;
  href: string;
  chart: ComponentChildren;
  concern?: "person";
}) {
  return (
    <a class={`number ${concern ?? ""}`} href={href} title={hint}>
      <span class="number-title">{title}</span>
      <span class="number-value">
        {concern && <ConcernIcon concern={concern} />}
        {value}
      </span>
      <span class="number-note">{note}</span>
      {chart}
    </a>
  );
}

function Workers({ overview }: { overview: Overview }) {
  const { workers, workers_total, workers_by_concern } = overview;
  const summary = (["person", "handled", "working", "well"] as const).filter((concern) => workers_by_concern[concern] > 0);
  return (
    <Section
      title="Workers"
      aside={summary.map((concern) => (
        <Pill key={concern} concern={concern}>
          {workers_by_concern[concern]} {concern === "well" ? "ready" : CONCERN_WORDS[concern]}
        </Pill>
      ))}
    >
      {workers.length === 0 ? <NoWorkers /> : <Tiles workers={workers} />}
      {workers_total > workers.length && (
        <p>
          <a href={link("workers")}>{count(workers_total - workers.length, "more worker")}</a>
        </p>
      )}
    </Section>
  );
}

function NoWorkers() {
  return (
    <Empty title="No worker has joined yet">
      <p>Start one beside a ComfyUI server. It joins this plane and takes jobs at once:</p>
      <Command text={`remuda worker --url ${location.origin} --comfyui http://127.0.0.1:8188`} />
      <p class="muted">No GPU at hand? This one needs nothing else:</p>
      <Command text={`remuda worker --url ${location.origin} --exec 'cat'`} />
    </Empty>
  );
}

/** One tile a worker, grouped by fleet and machine; the plane sends trouble first, and a group is where its first tile is. */
function Tiles({ workers }: { workers: Tile[] }) {
  const groups = new Map<string, Tile[]>();
  for (const worker of workers) {
    const group = worker.fleet ? `${worker.fleet} · ${worker.machine}` : worker.machine;
    groups.set(group, [...(groups.get(group) ?? []), worker]);
  }
  // A machine with one worker of the same name needs no heading.
  const isPlain = [...groups].every(([, tiles]) => tiles.length === 1);
  if (isPlain) return <div class="tiles">{workers.map((worker) => <WorkerTile key={worker.id} worker={worker} />)}</div>;
  return (
    <div class="tile-groups">
      {[...groups].map(([group, tiles]) => (
        <div class="tile-group" key={group}>
          <h3>{group}</h3>
          <div class="tiles">
            {tiles.map((worker) => (
              <WorkerTile key={worker.id} worker={worker} />
            ))}
          </div>
        </div>
      ))}
    </div>
  );
}

function WorkerTile({ worker }: { worker: Tile }) {
  const progress = worker.holds.length
    ? worker.holds.reduce((sum, hold) => sum + hold.progress, 0) / worker.holds.length
    : 0;
  const word = worker.holds.length && worker.concern === "working" ? count(worker.holds.length, "job") : worker.text;
  return (
    <a class={`tile ${worker.concern}`} href={link("workers", worker.id)} title={`${worker.id}: ${worker.text}`} data-worker={worker.id} data-concern={worker.concern}>
      <span class="tile-name">
        <ConcernIcon concern={worker.concern} />
        {worker.id}
      </span>
      <span class="tile-text">{word}</span>
      {worker.holds.length > 0 ? (
        <Bar value={progress} concern={worker.concern} label={`progress on ${worker.id}`} />
      ) : (
        <span class="bar-place" />
      )}
    </a>
  );
}

function Running({ overview }: { overview: Overview }) {
  const { running, running_total } = overview;
  const more = running_total - running.length;
  return (
    <Section title="Running jobs" aside={<a href={withQuery(link("jobs"), { state: "running" })}>all {running_total}</a>}>
      {running.length === 0 ? (
        <NoJobs overview={overview} />
      ) : (
        <ul class="running">
          {running.map((job) => (
            <RunningCard key={job.id} job={job} />
          ))}
        </ul>
      )}
      {more > 0 && (
        <p>
          <a href={withQuery(link("jobs"), { state: "running" })}>{count(more, "more job")} running</a>
        </p>
      )}
    </Section>
  );
}

function NoJobs({ overview }: { overview: Overview }) {
  if (overview.numbers.waiting > 0) return <Empty title="No job runs"><p>{overview.numbers.oldest?.reason}</p></Empty>;
  return (
    <Empty title="Nothing runs now">
      <p>Submit a workflow, exported from ComfyUI in API format:</p>
      <Command text={`remuda run workflow_api.json --url ${location.origin}`} />
    </Empty>
  );
}

function RunningCard({ job }: { job: RunningJob }) {
  const value = job.live?.value ?? job.progress;
  const doing = job.live?.message || job.live?.current_node_class || job.phase || "at work";
  return (
    <li class="running-job" data-row data-href={link("jobs", job.id)} data-job={job.id}>
      <Preview job={job.id} hasPreview={job.has_preview} />
      <div class="running-text">
        <div class="running-head">
          <JobLink id={job.id} />
          <span class="muted">
            on <WorkerLink id={job.worker} /> for <Since at={job.started_at} />
            {job.attempt > 1 && `, attempt ${job.attempt}`}
          </span>
        </div>
        <Bar value={value} label={`progress of job ${shortId(job.id)}`} />
        <div class="running-foot muted">
          <span>{doing}</span>
          <span class="figure">{Math.round(100 * value)} %</span>
        </div>
      </div>
    </li>
  );
}

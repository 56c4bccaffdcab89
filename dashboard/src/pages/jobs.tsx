// All jobs, a page at a time. Filters and the search are in the address. New jobs wait behind a button; rows that are shown
// change in place.

import { useEffect, useState } from "preact/hooks";
import { caller, get, isAdmin } from "../api";
import { onEvent } from "../events";
import { count } from "../format";
import { Ago, Command, Empty, JobLink, Loading, Problem, ShapeLink, StatePill, WorkerLink } from "../parts/basics";
import { firstLine } from "../words";
import { go, link, replaceQuery, route } from "../route";
import { unreachableSince } from "../resource";
import type { Job, JobPage } from "../types";

const PAGE = 50;
const STATES = [
  ["", "all"],
  ["queued", "waiting"],
  ["running", "running"],
  ["completed", "completed"],
  ["failed", "failed"],
  ["cancelled", "cancelled"],
] as const;
const FILTERS = ["state", "search", "tenant", "worker", "shape"] as const;
const UUID = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;
/** Rows whose job changed are read again at most this often, one job a time. */
const UPDATE_EVERY_MILLIS = 1000;

function address(query: URLSearchParams, before: string | null): string {
  const wanted = new URLSearchParams({ limit: String(PAGE) });
  for (const name of FILTERS) if (query.get(name)) wanted.set(name, query.get(name)!);
  if (before) wanted.set("before", before);
  return `/remuda/v1/jobs?${wanted}`;
}

export function JobsPage() {
  const { query } = route.value;
  const key = address(query, null);
  return (
    <div class="jobs">
      <h1>Jobs</h1>
      <Filters query={query} />
      <JobList key={key} query={query} />
    </div>
  );
}

function Filters({ query }: { query: URLSearchParams }) {
  const [text, setText] = useState(query.get("search") ?? "");
  const current = Object.fromEntries(FILTERS.map((name) => [name, query.get(name)]));
  const set = (change: Record<string, string | null>) => replaceQuery({ ...current, ...change });
  useEffect(() => setText(query.get("search") ?? ""), [query.get("search")]);
  const submit = (event: Event) => {
    event.preventDefault();
    const wanted = text.trim();
    if (UUID.test(wanted)) go(link("jobs", wanted.toLowerCase()));
    else set({ search: wanted });
  };
  const chips = (["tenant", "worker", "shape"] as const).filter((name) => query.get(name));
  return (
    <div class="filters">
      <form role="search" onSubmit={submit}>
        <input
          type="search"
          aria-label="search jobs"
          placeholder="id, label, tenant, workflow or error"
          value={text}
          onInput={(event) => setText((event.target as HTMLInputElement).value)}
        />
        <button type="submit">Search</button>
      </form>
      <div class="tabs" role="group" aria-label="state">
        {STATES.map(([state, word]) => (
          <button
            type="button"
            key={state}
            aria-pressed={(query.get("state") ?? "") === state}
            onClick={() => set({ state })}
          >
            {word}
          </button>
        ))}
      </div>
      {chips.map((name) => (
        <button type="button" class="chip" key={name} onClick={() => set({ [name]: null })} title="remove this filter">
          {name} {name === "shape" ? query.get(name)!.slice(0, 8) : query.get(name)} ×
        </button>
      ))}
    </div>
  );
}

function JobList({ query }: { query: URLSearchParams }) {
  const [jobs, setJobs] = useState<Job[] | null>(null);
  const [next, setNext] = useState<string | null>(null);
  const [problem, setProblem] = useState<string | null>(null);
  const [isLoading, setLoading] = useState(false);
  const [added, setAdded] = useState(0);

  const load = async (before: string | null) => {
    setLoading(true);
    try {
      const page = await get<JobPage>(address(query, before));
      setJobs((old) => (before ? [...(old ?? []), ...page.jobs] : page.jobs));
      setNext(page.next);
      setProblem(null);
      if (!before) setAdded(0);
    } catch (error) {
      if (error instanceof TypeError) unreachableSince.value ??= Date.now();
      setProblem(error instanceof Error ? error.message : String(error));
    }
    setLoading(false);
  };
  useEffect(() => void load(null), []);
  useRowUpdates(jobs, setJobs, () => setAdded((n) => n + 1));

  if (problem && !jobs) return <Problem message={problem} />;
  if (!jobs) return <Loading lines={10} />;
  return (
    <>
      <div class="new-place">
        {added > 0 && (
          <button type="button" class="new-rows" onClick={() => void load(null)}>
            {added} new
          </button>
        )}
      </div>
      {jobs.length === 0 ? <NoJobs query={query} next={next} /> : <Table jobs={jobs} />}
      {next && (
        <p class="more">
          <button type="button" disabled={isLoading} onClick={() => void load(next)}>
            {query.get("search") && jobs.length < PAGE ? "Search older jobs" : "Older jobs"}
          </button>
          <span class="muted"> {count(jobs.length, "job")} shown</span>
        </p>
      )}
    </>
  );
}

/** Keeps shown rows true: progress comes with the event, anything else is read again, one job a second. */
function useRowUpdates(jobs: Job[] | null, setJobs: (change: (old: Job[] | null) => Job[] | null) => void, onNew: () => void): void {
  const ids = jobs?.map((job) => job.id).join() ?? "";
  useEffect(() => {
    const known = new Set(ids.split(","));
    // Ids begin with the time: a job that is older than the first row is not new.
    const newest = jobs?.[0]?.id ?? "";
    const changed = new Set<string>();
    const stop = onEvent((event) => {
      if (!event.job) return;
      if (event.name === "job:queued" && event.job > newest && !known.has(event.job)) onNew();
      if (!known.has(event.job)) return;
      if (event.name === "job:progress") {
        setJobs((old) => old?.map((job) => (job.id === event.job ? { ...job, progress: { value: event.progress } } : job)) ?? null);
      } else if (event.name.startsWith("job:") && event.name !== "job:preview") changed.add(event.job);
    });
    const timer = setInterval(async () => {
      const [id] = changed;
      if (!id) return;
      changed.delete(id);
      try {
        const job = await get<Job>(`/remuda/v1/jobs/${id}`);
        setJobs((old) => old?.map((row) => (row.id === id ? job : row)) ?? null);
      } catch {
        // It is read again with its next event.
      }
    }, UPDATE_EVERY_MILLIS);
    return () => {
      stop();
      clearInterval(timer);
    };
  }, [ids]);
}

function NoJobs({ query, next }: { query: URLSearchParams; next: string | null }) {
  const isFiltered = FILTERS.some((name) => query.get(name));
  if (isFiltered)
    return (
      <Empty title={next ? "Nothing among the newest 20,000 jobs" : "No job matches"}>
        <p>
          <a href={link("jobs")}>Show all jobs</a>
        </p>
      </Empty>
    );
  return (
    <Empty title="No job yet">
      <p>Submit a workflow, exported from ComfyUI in API format:</p>
      <Command text={`remuda run workflow_api.json --url ${location.origin}`} />
    </Empty>
  );
}

function Table({ jobs }: { jobs: Job[] }) {
  const withTenant = isAdmin() && (caller.value?.tenant ?? null) === null;
  return (
    <div class="table-frame" tabIndex={0}>
      <table class="job-table">
        <thead>
          <tr>
            <th scope="col">Job</th>
            <th scope="col">State</th>
            <th scope="col" class="wide">
              Why
            </th>
            <th scope="col">Worker</th>
            {withTenant && <th scope="col">Tenant</th>}
            <th scope="col">Workflow</th>
            <th scope="col">Accepted</th>
          </tr>
        </thead>
        <tbody>
          {jobs.map((job) => (
            <tr key={job.id} data-row data-href={link("jobs", job.id)} data-job={job.id} data-state={job.state}>
              <td>
                <JobLink id={job.id} />
              </td>
              <td>
                <StatePill state={job.state} isRetry={job.attempt > 0} />
              </td>
              <td class="wide reason" title={job.reason}>
                {firstLine(job.reason)}
              </td>
              <td>{job.worker ? <WorkerLink id={job.worker} /> : <span class="muted">–</span>}</td>
              {withTenant && <td>{job.tenant}</td>}
              <td>
                {isAdmin() ? <ShapeLink shape={job.shape} /> : <span class="mono">{job.shape.slice(0, 8)}</span>}
              </td>
              <td>
                <Ago at={job.accepted_at} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

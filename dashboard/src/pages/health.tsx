// The plane's own state: its tasks, its store, its connections, and who may call it.

import { act } from "../api";
import { count, duration } from "../format";
import { Ago, Empty, Loading, Pill, Problem, Section } from "../parts/basics";
import { ask } from "../parts/dialog";
import { useResource } from "../resource";

interface Task {
  name: string;
  purpose: string;
  state: string;
  restarts: number;
  tick_age_millis: number;
  last_failure?: string;
}

interface Status {
  version: string;
  term: number;
  open_jobs: number;
  ready_jobs: number;
  tasks: Task[];
  store: { has_reserve: boolean };
  tls: { ends_at: string } | null;
  brakes: { kind: string; reason: string; until: string | null }[];
  refused: Record<string, number>;
  wakes: { at: string; reason: string };
}

interface TokenRow {
  id: string;
  role: string;
  tenant?: string | null;
  name?: string;
  created_at?: string;
  expires_at?: string | null;
  last_used_at?: string | null;
}

export function HealthPage() {
  const { data, error } = useResource<Status>("/remuda/v1/status", 5);
  const tokens = useResource<{ tokens: TokenRow[] }>("/remuda/v1/tokens", 30).data?.tokens;
  if (error && !data) return <Problem message={error.message} />;
  if (!data) return <Loading lines={8} />;
  return (
    <div>
      <h1>Health</h1>
      <Section title="Plane">
        <dl class="facts">
          <div><dt>version</dt><dd>{data.version}</dd></div>
          <div><dt>starts</dt><dd>{data.term}</dd></div>
          <div><dt>open jobs</dt><dd>{data.open_jobs.toLocaleString()}</dd></div>
          <div><dt>could start now</dt><dd>{data.ready_jobs.toLocaleString()}</dd></div>
          <div><dt>store</dt><dd>{data.store.has_reserve ? "accepts writes" : "the disk is full"}</dd></div>
          <div><dt>certificate</dt><dd>{data.tls ? <>ends <Ago at={data.tls.ends_at} /></> : "no TLS"}</dd></div>
        </dl>
        {data.brakes.map((brake) => (
          <p key={brake.reason}>
            <Pill concern="handled">brake</Pill> {brake.reason}
          </p>
        ))}
      </Section>
      <Section title="Background tasks" aside={count(data.tasks.length, "task")}>
        <Tasks tasks={data.tasks} />
      </Section>
      <Section title="Refused messages" aside="late or repeated reports of workers, refused by their fence">
        <dl class="facts">
          {Object.entries(data.refused).map(([name, number]) => (
            <div key={name}>
              <dt>{name.replaceAll("_", " ")}</dt>
              <dd>{number.toLocaleString()}</dd>
            </div>
          ))}
        </dl>
      </Section>
      <Section title="Tokens">{tokens ? <Tokens tokens={tokens} /> : <Loading lines={2} />}</Section>
    </div>
  );
}

function Tasks({ tasks }: { tasks: Task[] }) {
  return (
    <div class="table-frame" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">Task</th>
            <th scope="col">State</th>
            <th scope="col" class="wide">
              What it does
            </th>
            <th scope="col">Restarts</th>
            <th scope="col">Last tick</th>
          </tr>
        </thead>
        <tbody>
          {tasks.map((task) => (
            <tr key={task.name}>
              <td class="mono">{task.name}</td>
              <td>
                <Pill concern={task.state === "running" ? "well" : task.state === "down" ? "person" : "handled"}>{task.state}</Pill>
              </td>
              <td class="wide">
                {task.purpose}
                {task.last_failure && <span class="muted">; last failure: {task.last_failure}</span>}
              </td>
              <td class="figure">{task.restarts}</td>
              <td class="nowrap">{duration(task.tick_age_millis)} ago</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Tokens({ tokens }: { tokens: TokenRow[] }) {
  if (tokens.length === 0) return <Empty title="None: every caller on this machine may do everything" />;
  const revoke = (token: TokenRow) =>
    ask({
      title: `Revoke token ${token.name || token.id}`,
      consequence: <p>Every program that uses it is refused from now on. This cannot be undone; make a new token instead.</p>,
      verb: "Revoke the token",
      isDangerous: true,
      run: async () => {
        await act("DELETE", `/remuda/v1/tokens/${encodeURIComponent(token.id)}`);
        return `Token ${token.name || token.id} is revoked.`;
      },
    });
  return (
    <div class="table-frame" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">Name</th>
            <th scope="col">Role</th>
            <th scope="col">Tenant</th>
            <th scope="col">Expires</th>
            <th scope="col">
              <span class="offscreen">Actions</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {tokens.map((token) => (
            <tr key={token.id}>
              <td>{token.name || <span class="mono">{token.id}</span>}</td>
              <td>{token.role}</td>
              <td>{token.tenant ?? <span class="muted">all</span>}</td>
              <td>{token.expires_at ? <Ago at={token.expires_at} /> : <span class="muted">never</span>}</td>
              <td>
                <button type="button" class="plain" onClick={() => revoke(token)}>
                  Revoke…
                </button>
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

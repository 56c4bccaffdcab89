// Rented machines: how many are wanted and there, why, and what they cost.

import { act } from "../api";
import { count, dollars } from "../format";
import { Ago, Command, Empty, Json, Loading, Pill, Problem, Section } from "../parts/basics";
import { ask, signed } from "../parts/dialog";
import { useResource } from "../resource";

interface Fleet {
  fleet: string;
  machines_total: number;
  machines_wanted: number | null;
  machines_set: number | null;
  queued_jobs: number | null;
  problem: string | null;
  held_back: string[];
  paused: string | null;
  brake: string | null;
  per_hour_dollars: number;
  today_dollars: number;
  day_max_dollars?: number | null;
  hour_max_dollars?: number | null;
  settings?: { day_max_dollars?: number | null; machines_min?: number; machines_max?: number };
}

interface Cycle {
  at?: string;
  fleets?: Record<string, { reason?: string; reasons?: string[] }>;
  [key: string]: unknown;
}

export function FleetPage() {
  const { data, error } = useResource<{ fleets: Fleet[] }>("/remuda/v1/fleets", 5);
  const cycles = useResource<{ cycles: Cycle[] }>("/remuda/v1/cycles", 30).data?.cycles;
  if (error && !data) return <Problem message={error.message} />;
  if (!data) return <Loading lines={6} />;
  return (
    <div>
      <h1>Fleet and money</h1>
      {data.fleets.length === 0 ? (
        <Empty title="No fleet is configured">
          <p>A fleet rents machines while jobs wait and returns them when there is nothing to do. See what it takes:</p>
          <Command text="remuda config show" />
          <p class="muted">docs/fleets.md explains providers, limits and budgets.</p>
        </Empty>
      ) : (
        data.fleets.map((fleet) => <FleetCard key={fleet.fleet} fleet={fleet} />)
      )}
      <Section title="Control cycles">{!cycles ? <Loading /> : <Cycles cycles={cycles} />}</Section>
    </div>
  );
}

function FleetCard({ fleet }: { fleet: Fleet }) {
  const name = fleet.fleet;
  const path = `/remuda/v1/fleets/${encodeURIComponent(name)}`;
  const pause = () =>
    ask({
      title: `Pause fleet ${name}`,
      consequence: <p>It neither rents nor returns machines until you resume it. The {count(fleet.machines_total, "machine")} it has keep running and cost {dollars(fleet.per_hour_dollars)} per hour.</p>,
      verb: "Pause the fleet",
      withReason: true,
      run: async (reason) => {
        await act("POST", `${path}/pause`, { reason: signed(reason, "paused") });
        return `Fleet ${name} is paused.`;
      },
    });
  const resume = () =>
    ask({
      title: `Resume fleet ${name}`,
      consequence: <p>It follows its scaling policy again, and may rent machines at once.</p>,
      verb: "Resume the fleet",
      run: async () => {
        await act("POST", `${path}/resume`);
        return `Fleet ${name} follows its policy again.`;
      },
    });
  const problem = fleet.problem ?? fleet.brake;
  return (
    <Section
      title={`Fleet ${name}`}
      aside={
        <button type="button" onClick={fleet.paused ? resume : pause}>
          {fleet.paused ? "Resume…" : "Pause…"}
        </button>
      }
    >
      {problem && (
        <p>
          <Pill concern="handled">rents nothing</Pill> {problem}
        </p>
      )}
      <dl class="facts">
        <div><dt>machines there</dt><dd>{fleet.machines_total}</dd></div>
        <div><dt>machines wanted</dt><dd>{fleet.machines_wanted ?? "–"}{fleet.machines_set !== null && fleet.machines_set !== undefined && " (set by hand)"}</dd></div>
        <div><dt>jobs waiting for it</dt><dd>{fleet.queued_jobs ?? 0}</dd></div>
        <div><dt>per hour</dt><dd>{dollars(fleet.per_hour_dollars)}</dd></div>
        <div><dt>today</dt><dd>{dollars(fleet.today_dollars)}{fleet.day_max_dollars ? ` of ${dollars(fleet.day_max_dollars)}` : ""}</dd></div>
      </dl>
      {fleet.held_back.length > 0 && <ul class="plain-list">{fleet.held_back.map((why) => <li key={why}>held back: {why}</li>)}</ul>}
    </Section>
  );
}

function Cycles({ cycles }: { cycles: Cycle[] }) {
  if (cycles.length === 0) return <Empty title="No cycle has run yet: the first runs half a minute after the start" />;
  return (
    <ul class="plain-list">
      {cycles.slice(0, 20).map((cycle, n) => (
        <li key={cycle.at ?? n}>
          <details>
            <summary>
              <Ago at={typeof cycle.at === "string" ? cycle.at : null} />
            </summary>
            <Json value={cycle} />
          </details>
        </li>
      ))}
    </ul>
  );
}

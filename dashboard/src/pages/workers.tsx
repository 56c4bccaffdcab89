// Workers and the machines they run on.

import { useState } from "preact/hooks";
import { count, dollars, percent } from "../format";
import { Ago, Command, Empty, JobLink, Loading, Pill, Problem, Section, WorkerLink } from "../parts/basics";
import { askDrain } from "../parts/drain";
import { useResource } from "../resource";
import { link } from "../route";
import { AVAILABILITY } from "../words";
import type { Concern, Machine, Worker } from "../types";

const ORDER: Concern[] = ["person", "handled", "working", "well"];
/** Rows at a time: a list of thousands would make the page slow. */
const ROWS = 100;

export function WorkersPage() {
  const { data, error } = useResource<{ workers: Worker[]; brake: string | null }>("/remuda/v1/workers", 5);
  const machines = useResource<{ machines: Machine[] }>("/remuda/v1/machines", 15).data?.machines ?? [];
  if (error && !data) return <Problem message={error.message} />;
  if (!data) return <Loading lines={8} />;
  const workers = data.workers.filter((worker) => worker.availability !== "terminated");
  return (
    <div>
      <h1>Workers and machines</h1>
      {data.brake && <Problem message={data.brake} />}
      <Section title="Workers" aside={count(workers.length, "worker")}>
        {workers.length === 0 ? (
          <Empty title="No worker has joined yet">
            <Command text={`remuda worker --url ${location.origin} --comfyui http://127.0.0.1:8188`} />
          </Empty>
        ) : (
          <WorkerTable workers={workers} />
        )}
      </Section>
      {machines.length > 0 && (
        <Section title="Machines" aside={count(machines.length, "machine")}>
          <MachineTable machines={machines} />
        </Section>
      )}
    </div>
  );
}

function WorkerTable({ workers }: { workers: Worker[] }) {
  const [shown, setShown] = useState(ROWS);
  const rank = (worker: Worker) => Math.min(ORDER.indexOf(worker.concern), 2);
  const sorted = [...workers].sort((a, b) => rank(a) - rank(b) || a.id.localeCompare(b.id));
  return (
    <>
      <div class="table-frame" tabIndex={0}>
        <table>
          <thead>
            <tr>
              <th scope="col">Worker</th>
              <th scope="col">State</th>
              <th scope="col" class="wide">
                Runs
              </th>
              <th scope="col" class="figure">
                Success
              </th>
              <th scope="col">Last beat</th>
              <th scope="col">Machine</th>
              <th scope="col">
                <span class="offscreen">Actions</span>
              </th>
            </tr>
          </thead>
          <tbody>
            {sorted.slice(0, shown).map((worker) => (
              <WorkerRow key={worker.id} worker={worker} />
            ))}
          </tbody>
        </table>
      </div>
      {sorted.length > shown && (
        <p class="more">
          <button type="button" onClick={() => setShown(shown + ROWS)}>
            {count(Math.min(ROWS, sorted.length - shown), "more worker")}
          </button>
        </p>
      )}
    </>
  );
}

function WorkerRow({ worker }: { worker: Worker }) {
  const ended = worker.completed + worker.failed + worker.lost;
  const isLeaving = worker.availability === "draining";
  return (
    <tr data-row data-href={link("workers", worker.id)} data-worker={worker.id}>
      <td>
        <WorkerLink id={worker.id} />
        {worker.unreliable && <span class="note"> often silent</span>}
      </td>
      <td>
        <Pill concern={worker.concern} title={AVAILABILITY[worker.availability]}>
          {worker.holds.length && worker.availability === "ready" ? "at work" : worker.availability}
        </Pill>
      </td>
      <td class="wide reason">
        {worker.holds.slice(0, 4).map((hold) => (
          <span class="hold" key={hold.job}>
            <JobLink id={hold.job} /> <span class="figure">{Math.round(100 * hold.progress)} %</span>
          </span>
        ))}
        {worker.unavailable_reason ??
          (worker.holds.length === 0 && <span class="muted">nothing, {count(worker.slots, "slot")} free</span>)}
      </td>
      <td class="figure" title={`${worker.completed} completed, ${worker.failed} failed, ${worker.lost} lost`}>
        {percent(worker.completed, ended)}
      </td>
      <td>
        <Ago at={worker.seen_at} />
      </td>
      <td>{worker.fleet ? `${worker.fleet} · ${worker.machine}` : worker.machine}</td>
      <td>
        {!isLeaving && (
          <button type="button" class="plain" onClick={() => askDrain(worker.id, worker.holds)}>
            Drain…
          </button>
        )}
      </td>
    </tr>
  );
}

function MachineTable({ machines }: { machines: Machine[] }) {
  return (
    <div class="table-frame" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">Machine</th>
            <th scope="col">State</th>
            <th scope="col">GPU</th>
            <th scope="col">Workers</th>
            <th scope="col">Since</th>
            <th scope="col">Cost</th>
            <th scope="col" class="wide">
              Why
            </th>
          </tr>
        </thead>
        <tbody>
          {machines.slice(0, ROWS).map((machine) => (
            <tr key={machine.machine}>
              <td>{machine.machine}</td>
              <td>
                <Pill concern={machine.presence === "online" ? "well" : "handled"}>{machine.phase ?? machine.presence}</Pill>
              </td>
              <td>{machine.gpu ?? <span class="muted">unknown</span>}</td>
              <td>{machine.workers.slice(0, 3).map((id) => <span class="hold" key={id}><WorkerLink id={id} /></span>)}{machine.workers.length > 3 && `+${machine.workers.length - 3}`}</td>
              <td>
                <Ago at={machine.since} />
              </td>
              <td class="figure">
                {machine.is_rented ? `${dollars(machine.cost_dollars ?? 0)}${machine.price_dollars ? ` (${dollars(machine.price_dollars)}/h)` : ""}` : <span class="muted">not rented</span>}
              </td>
              <td class="wide reason">{machine.waiting?.text ?? machine.reason ?? ""}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

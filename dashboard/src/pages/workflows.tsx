// Workflows by shape: how often each ran and how it went, what is blocked, and which worker does well with which.

import { count, duration, percent } from "../format";
import { Ago, Empty, JobLink, Loading, Pill, Problem, Section, ShapeLink, WorkerLink } from "../parts/basics";
import { askLift, askRelease } from "../parts/lift";
import { useResource } from "../resource";
import { link, withQuery } from "../route";
import type { Block, Concern, Quarantined, WorkflowList, WorkflowUse } from "../types";

const COLUMNS_MAX = 12;

export function WorkflowsPage({ shape }: { shape?: string }) {
  const { data, error } = useResource<WorkflowList>("/remuda/v1/workflows", 20);
  const blocks = useResource<{ blocks: Block[] }>("/remuda/v1/blocks", 15).data?.blocks ?? [];
  const quarantine = useResource<{ shapes: Quarantined[] }>("/remuda/v1/quarantine", 15).data?.shapes ?? [];
  if (error && !data) return <Problem message={error.message} />;
  if (!data) return <Loading lines={8} />;
  const shown = shape ? data.workflows.filter((one) => one.shape === shape) : data.workflows;
  const ofShape = <T extends { shape: string }>(list: T[]) => list.filter((one) => !shape || one.shape === shape);
  return (
    <div>
      <h1>{shape ? <>Workflow <span class="mono">{shape.slice(0, 8)}</span></> : "Workflows"}</h1>
      <p class="muted">
        {shape && <><a href={link("workflows")}>All workflows</a> · <a href={withQuery(link("jobs"), { shape })}>its jobs</a> · </>}
        From the newest {count(data.jobs_looked_at, "job")}
        {data.is_all ? "." : <>, since <Ago at={data.since} />.</>}
      </p>
      <Trouble blocks={ofShape(blocks)} quarantine={ofShape(quarantine).filter((one) => one.is_quarantined)} />
      <Section title="Runs" aside={count(shown.length, "workflow")}>
        {shown.length === 0 ? <Empty title={shape ? "None of the newest jobs has this shape" : "No job yet"} /> : <UseTable uses={shown} />}
      </Section>
      {shown.length > 0 && (
        <Section title="Workers and workflows">
          <Matrix uses={shown.slice(0, 20)} blocks={blocks} />
        </Section>
      )}
    </div>
  );
}

function Trouble({ blocks, quarantine }: { blocks: Block[]; quarantine: Quarantined[] }) {
  return (
    <Section title="Blocks and quarantine" aside={`${blocks.length} blocked, ${quarantine.length} in quarantine`}>
      {blocks.length + quarantine.length === 0 && <Empty title="None: every worker gets every workflow it can run" />}
      <ul class="plain-list">
        {quarantine.map((entry) => (
          <li key={entry.shape + entry.tenant}>
            <Pill concern="handled">quarantine</Pill> <ShapeLink shape={entry.shape} /> of {entry.tenant} failed on{" "}
            {entry.failed_on.join(", ")}: {entry.reason}
            {entry.trial_at && <>. Next trial <Ago at={entry.trial_at} /></>}{" "}
            <button type="button" onClick={() => askRelease(entry)}>
              Release…
            </button>
          </li>
        ))}
        {blocks.slice(0, 100).map((block) => (
          <li key={block.worker + block.scope + block.shape + block.workflow_hash} data-block={block.worker}>
            <Pill concern="handled">{block.is_blocked ? "blocked" : "on trial"}</Pill> <WorkerLink id={block.worker} /> does not get{" "}
            <ShapeLink shape={block.shape} /> until <Ago at={block.until} />: {block.reason}{" "}
            <button type="button" onClick={() => askLift(block)}>
              Lift…
            </button>
          </li>
        ))}
      </ul>
    </Section>
  );
}

function UseTable({ uses }: { uses: WorkflowUse[] }) {
  return (
    <div class="table-frame" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">Workflow</th>
            <th scope="col" class="wide">
              Runs
            </th>
            <th scope="col">Jobs</th>
            <th scope="col">Success</th>
            <th scope="col">Failed</th>
            <th scope="col">Run time</th>
            <th scope="col">Last</th>
          </tr>
        </thead>
        <tbody>
          {uses.map((use) => (
            <tr key={use.shape} data-row data-href={link("workflows", use.shape)}>
              <td>
                <ShapeLink shape={use.shape} />
              </td>
              <td class="wide reason">
                {use.models.length ? use.models.join(", ") : use.services.join(", ")}
                <span class="muted"> for {use.tenants.join(", ")}</span>
              </td>
              <td class="figure">
                <a href={withQuery(link("jobs"), { shape: use.shape })}>{use.jobs.toLocaleString()}</a>
              </td>
              <td class="figure">{percent(use.completed, use.completed + use.failed)}</td>
              <td class="figure">
                {use.failed > 0 ? <a href={withQuery(link("jobs"), { shape: use.shape, state: "failed" })}>{use.failed}</a> : "0"}
              </td>
              <td class="figure nowrap" title={use.run_millis ? `from ${duration(use.run_millis.shortest)} to ${duration(use.run_millis.longest)}` : undefined}>
                {use.run_millis ? `${duration(use.run_millis.median)}, slow ${duration(use.run_millis.slow)}` : "–"}
              </td>
              <td>
                <Ago at={use.last_at} /> {use.last_job && <JobLink id={use.last_job} />}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Matrix({ uses, blocks }: { uses: WorkflowUse[]; blocks: Block[] }) {
  const workers = [...new Set(uses.flatMap((use) => Object.keys(use.workers)))].sort().slice(0, COLUMNS_MAX);
  if (workers.length === 0) return <Empty title="No attempt has ended yet" />;
  const cell = (use: WorkflowUse, worker: string) => {
    const counts = use.workers[worker];
    const isBlocked = blocks.some((block) => block.worker === worker && block.shape === use.shape && block.is_blocked);
    if (!counts && !isBlocked) return <td key={worker} class="figure muted">–</td>;
    const { completed = 0, failed = 0 } = counts ?? {};
    const concern: Concern = isBlocked ? "handled" : failed > completed ? "person" : "well";
    const title = `${worker}: ${completed} completed, ${failed} failed${isBlocked ? ", blocked" : ""}`;
    return (
      <td key={worker} class={`figure cell ${concern}`} title={title}>
        {isBlocked ? "blocked" : percent(completed, completed + failed)}
      </td>
    );
  };
  return (
    <div class="table-frame" tabIndex={0}>
      <table class="matrix">
        <thead>
          <tr>
            <th scope="col">Workflow</th>
            {workers.map((worker) => (
              <th scope="col" key={worker}>
                <WorkerLink id={worker} />
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {uses.map((use) => (
            <tr key={use.shape}>
              <th scope="row">
                <ShapeLink shape={use.shape} />
              </th>
              {workers.map((worker) => cell(use, worker))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

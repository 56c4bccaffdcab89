// Every setting with its value, what it means and where it comes from; and who changed what.

import { useState } from "preact/hooks";
import { count } from "../format";
import { Ago, Empty, Loading, Pill, Problem, Section } from "../parts/basics";
import { useResource } from "../resource";

interface Setting {
  value: unknown;
  meaning: string;
  origin: string;
  path?: string;
  line?: number;
  name?: string;
}

interface AuditLine {
  seq: number;
  at: string;
  who: string;
  from: string;
  what: string;
  on: string;
  outcome: string;
}

export function SettingsPage() {
  const { data, error } = useResource<{ settings: Record<string, Setting>; needs_restart: boolean }>("/remuda/v1/settings", 60);
  const audit = useResource<{ lines: AuditLine[] }>("/remuda/v1/audit", 10).data?.lines;
  if (error && !data) return <Problem message={error.message} />;
  if (!data) return <Loading lines={8} />;
  return (
    <div>
      <h1>Settings and audit</h1>
      {data.needs_restart && (
        <p>
          <Pill concern="handled">restart</Pill> Some settings that were read again apply only after a restart of the plane.
        </p>
      )}
      <Section title="Audit log" aside="who did what; remuda audit verifies it">
        {!audit ? <Loading lines={3} /> : <Audit lines={audit} />}
      </Section>
      <Settings settings={data.settings} />
    </div>
  );
}

function Audit({ lines }: { lines: AuditLine[] }) {
  if (lines.length === 0) return <Empty title="Nothing was changed yet" />;
  return (
    <div class="table-frame" tabIndex={0}>
      <table>
        <thead>
          <tr>
            <th scope="col">When</th>
            <th scope="col">Who</th>
            <th scope="col">What</th>
            <th scope="col" class="wide">
              On
            </th>
            <th scope="col">Outcome</th>
          </tr>
        </thead>
        <tbody>
          {lines.slice(0, 30).map((line) => (
            <tr key={line.seq} data-audit={line.what}>
              <td>
                <Ago at={line.at} />
              </td>
              <td title={line.from}>{line.who}</td>
              <td class="mono">{line.what}</td>
              <td class="wide reason">{line.on}</td>
              <td>{line.outcome}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Settings({ settings }: { settings: Record<string, Setting> }) {
  const [isAll, setAll] = useState(false);
  const rows = Object.entries(settings).filter(([, setting]) => isAll || setting.origin !== "default");
  return (
    <Section
      title="Settings"
      aside={
        <button type="button" class="plain" onClick={() => setAll(!isAll)}>
          {isAll ? "Only those that were changed" : `All ${count(Object.keys(settings).length, "setting")}`}
        </button>
      }
    >
      {rows.length === 0 ? (
        <Empty title="Every setting has its default" />
      ) : (
        <div class="table-frame" tabIndex={0}>
          <table>
            <thead>
              <tr>
                <th scope="col">Setting</th>
                <th scope="col">Value</th>
                <th scope="col">Origin</th>
                <th scope="col" class="wide">
                  Meaning
                </th>
              </tr>
            </thead>
            <tbody>
              {rows.map(([name, setting]) => (
                <tr key={name}>
                  <td class="mono">{name}</td>
                  <td class="mono">{String(setting.value)}</td>
                  <td>{originOf(setting)}</td>
                  <td class="wide reason">{setting.meaning}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </Section>
  );
}

function originOf(setting: Setting): string {
  if (setting.origin === "file") return `${setting.path}:${setting.line}`;
  return setting.name ? `${setting.origin} ${setting.name}` : setting.origin;
}

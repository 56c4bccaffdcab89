// A small line chart. Drawn as SVG without a library: it follows the colours of the page, and a screen reader gets a
// sentence instead of a picture. Gaps in the data are gaps in the line.

export interface Point {
  /** Milliseconds since 1970. */
  at: number;
  value: number;
}

const WIDTH = 240;
const HEIGHT = 44;

export function Sparkline({
  points,
  from,
  until,
  gapMillis,
  label,
}: {
  points: Point[];
  from: number;
  until: number;
  /** Points further apart are not connected. */
  gapMillis: number;
  label: string;
}) {
  const max = Math.max(1, ...points.map((point) => point.value));
  const x = (at: number) => (WIDTH * (at - from)) / (until - from);
  const y = (value: number) => HEIGHT - 2 - (HEIGHT - 6) * (value / max);
  const runs: Point[][] = [];
  for (const point of points) {
    const run = runs.at(-1);
    const last = run?.at(-1);
    if (run && last && point.at - last.at <= gapMillis) run.push(point);
    else runs.push([point]);
  }
  const line = (run: Point[]) =>
    run.map((point, n) => `${n ? "L" : "M"}${x(point.at).toFixed(1)} ${y(point.value).toFixed(1)}`).join("");
  const area = (run: Point[]) =>
    `${line(run)}L${x(run.at(-1)!.at).toFixed(1)} ${HEIGHT}L${x(run[0]!.at).toFixed(1)} ${HEIGHT}Z`;
  const top = Math.max(...points.map((point) => point.value));
  const summary = points.length ? `${label}: between ${Math.min(...points.map((p) => p.value))} and ${top}` : `${label}: no data`;
  return (
    <svg class="sparkline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={summary}>
      <title>{summary}</title>
      <line class="base" x1="0" x2={WIDTH} y1={HEIGHT - 0.5} y2={HEIGHT - 0.5} />
      {runs.map((run) => (
        <g key={run[0]!.at}>
          <path class="area" d={area(run)} />
          <path class="line" d={line(run)} vector-effect="non-scaling-stroke" />
        </g>
      ))}
    </svg>
  );
}

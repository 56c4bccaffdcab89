// A ComfyUI workflow as a small node graph: columns by depth, the running or failing node marked.

import { useMemo } from "preact/hooks";

interface GraphNode {
  id: string;
  type: string;
  title: string;
  inputs: string[];
  column: number;
  row: number;
}

const WIDTH = 150;
const HEIGHT = 34;
const GAP_X = 46;
const GAP_Y = 14;
/** It shrinks to the width of its place, but not below this: then it scrolls. */
const WIDTH_MIN = 720;
/** A larger graph says nothing as a small picture. */
const NODES_MAX = 300;

type RawGraph = Record<string, { class_type?: unknown; inputs?: Record<string, unknown>; _meta?: { title?: unknown } }>;

/** The nodes of a graph in API format; `null` for any other workflow. */
export function readGraph(workflow: unknown): GraphNode[] | null {
  if (!workflow || typeof workflow !== "object" || Array.isArray(workflow)) return null;
  const graph = workflow as RawGraph;
  const ids = Object.keys(graph);
  if (ids.length === 0 || ids.length > NODES_MAX) return null;
  const nodes: GraphNode[] = [];
  for (const id of ids) {
    const node = graph[id];
    if (!node || typeof node !== "object" || typeof node.class_type !== "string") return null;
    const inputs = Object.values(node.inputs ?? {})
      .filter((value): value is [string, number] => Array.isArray(value) && value.length === 2 && String(value[0]) in graph)
      .map(([from]) => String(from));
    const title = typeof node._meta?.title === "string" ? node._meta.title : node.class_type;
    nodes.push({ id, type: node.class_type, title, inputs, column: 0, row: 0 });
  }
  return place(nodes);
}

function place(nodes: GraphNode[]): GraphNode[] {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  // Each round moves a node behind its inputs; a cycle, which ComfyUI would refuse, ends after as many rounds as nodes.
  for (let round = 0; round < nodes.length; round += 1) {
    let hasMoved = false;
    for (const node of nodes) {
      const column = Math.min(nodes.length, Math.max(0, ...node.inputs.map((id) => byId.get(id)!.column + 1)));
      if (column > node.column) {
        node.column = column;
        hasMoved = true;
      }
    }
    if (!hasMoved) break;
  }
  const used = new Map<number, number>();
  for (const node of nodes) {
    node.row = used.get(node.column) ?? 0;
    used.set(node.column, node.row + 1);
  }
  return nodes;
}

export function Graph({
  nodes,
  running,
  failing,
  isDone,
}: {
  nodes: GraphNode[];
  running?: string;
  failing?: string;
  isDone: boolean;
}) {
  const { width, height, x, y } = useMemo(() => {
    const columns = Math.max(...nodes.map((node) => node.column)) + 1;
    const rows = Math.max(...nodes.map((node) => node.row)) + 1;
    return {
      width: columns * (WIDTH + GAP_X) - GAP_X,
      height: rows * (HEIGHT + GAP_Y) - GAP_Y,
      x: (node: GraphNode) => node.column * (WIDTH + GAP_X),
      y: (node: GraphNode) => node.row * (HEIGHT + GAP_Y),
    };
  }, [nodes]);
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const marked = nodes.find((node) => node.id === (failing ?? running));
  const label = `workflow with ${nodes.length} nodes${marked ? `, ${failing ? "failing" : "running"} node: ${marked.title}` : ""}`;
  return (
    <div class="graph" tabIndex={0} role="group" aria-label="workflow graph">
      <svg
        viewBox={`-4 -4 ${width + 8} ${height + 8}`}
        style={{ width: "100%", maxWidth: `${width + 8}px`, minWidth: `${Math.min(width, WIDTH_MIN)}px` }}
        role="img"
        aria-label={label}
      >
        {nodes.flatMap((node) =>
          node.inputs.map((id, n) => {
            const from = byId.get(id)!;
            const [x1, y1] = [x(from) + WIDTH, y(from) + HEIGHT / 2];
            const [x2, y2] = [x(node), y(node) + HEIGHT / 2];
            return <path key={`${id}-${node.id}-${n}`} class="edge" d={`M${x1} ${y1}C${x1 + 24} ${y1} ${x2 - 24} ${y2} ${x2} ${y2}`} />;
          }),
        )}
        {nodes.map((node) => {
          const state = node.id === failing ? "person" : node.id === running ? "working" : isDone ? "done" : "";
          return (
            <g key={node.id} class={`node ${state}`} transform={`translate(${x(node)} ${y(node)})`} data-node={node.id}>
              <title>{`${node.id}: ${node.type}${state === "person" ? " (failed here)" : state === "working" ? " (runs now)" : ""}`}</title>
              <rect width={WIDTH} height={HEIGHT} rx="5" />
              <text x="10" y="21">
                {short(node.title)}
              </text>
              {state === "person" && <text class="mark" x={WIDTH - 18} y="22">!</text>}
              {state === "working" && <text class="mark" x={WIDTH - 18} y="22">▶</text>}
            </g>
          );
        })}
      </svg>
    </div>
  );
}

function short(title: string): string {
  return title.length > 19 ? `${title.slice(0, 18)}…` : title;
}

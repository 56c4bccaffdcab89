// Lifting a block and releasing a workflow from quarantine.

import { act } from "../api";
import { shortHash } from "../format";
import { ask } from "./dialog";
import type { Block, Quarantined } from "../types";

/** Blocks of a workflow are lifted by its hash, blocks of a shape by the shape. */
export function askLift(block: Block): void {
  const hash = block.scope === "workflow" ? block.workflow_hash : block.shape;
  ask({
    title: `Lift the block of ${block.worker}`,
    consequence: (
      <p>
        {block.worker} gets jobs of workflow {shortHash(hash)} again at once. It failed {block.failures} times with it (
        {block.reason}); if it fails again, it is blocked again, for longer.
      </p>
    ),
    verb: "Lift the block",
    run: async () => {
      await act("DELETE", `/remuda/v1/blocks/${encodeURIComponent(block.worker)}/${hash}`);
      return `${block.worker} may run workflow ${shortHash(hash)} again.`;
    },
  });
}

export function askRelease(entry: Quarantined): void {
  ask({
    title: `Release workflow ${shortHash(entry.shape)}`,
    consequence: (
      <p>
        All jobs of this workflow may run at once again. It failed on {entry.failed_on.join(", ")}; if it fails on several
        workers again, it is quarantined again.
      </p>
    ),
    verb: "Release it",
    run: async () => {
      await act("DELETE", `/remuda/v1/quarantine/${entry.shape}`);
      return `Workflow ${shortHash(entry.shape)} is released.`;
    },
  });
}

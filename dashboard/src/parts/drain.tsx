// Draining a worker: from its page and from the list.

import { act } from "../api";
import { count } from "../format";
import { ask, signed } from "./dialog";
import type { Hold } from "../types";

/** As long as a person would wait for a job to finish before a machine is serviced. */
const DRAIN_MINUTES = 10;

export function askDrain(worker: string, holds: Hold[]): void {
  const jobs = count(holds.length, "job");
  ask({
    title: `Drain ${worker}`,
    consequence: (
      <p>
        It gets no new work.{" "}
        {holds.length
          ? `Its ${jobs} may finish first, for up to ${DRAIN_MINUTES} min; what is not done by then goes to another worker.`
          : "It holds nothing, so it leaves at once."}{" "}
        To undo it, start the worker again.
      </p>
    ),
    verb: "Drain the worker",
    isDangerous: true,
    withReason: true,
    run: async (reason) => {
      await act("POST", `/remuda/v1/workers/${encodeURIComponent(worker)}/drain`, {
        deadline_seconds: DRAIN_MINUTES * 60,
        reason: signed(reason, "drained"),
      });
      return `${worker} is draining.`;
    },
  });
}

// Which answers an event makes out of date.

import { onEvent } from "./events";
import { markDirty } from "./resource";
import type { PlaneEvent } from "./types";

/** Progress changes what is shown of running jobs; it comes often, and the budget of requests bounds it. */
function concerns(event: PlaneEvent, path: string): boolean {
  const { name, job, worker } = event;
  const isLive = name === "job:progress" || name === "job:preview";
  if (job && path.includes(job)) return !isLive || !/\/(why|workflow)$/.test(path);
  if (path === "/remuda/v1/overview") return true;
  if (isLive) return false;
  if (path.startsWith("/remuda/v1/workers")) return worker != null;
  if (path.startsWith("/remuda/v1/blocks")) return name.startsWith("client:");
  if (path.startsWith("/remuda/v1/quarantine")) return name.startsWith("workflow:");
  if (path.startsWith("/remuda/v1/fleets") || path.startsWith("/remuda/v1/machines"))
    return name.startsWith("machine:") || name.startsWith("fleet:") || name.startsWith("scale:");
  return false;
}

export function followEvents(): () => void {
  return onEvent((event) => markDirty((path) => concerns(event, path)));
}

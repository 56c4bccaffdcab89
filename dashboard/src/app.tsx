// The frame of every page: navigation, the plane's sentence, the state of the connection, keys and dialogs.

import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { ApiError, caller, identify, isAdmin, needsToken, setToken, token } from "./api";
import { tick } from "./clock";
import { isStreaming, startStream } from "./events";
import { duration } from "./format";
import { Help, useKeys } from "./keys";
import { ConcernIcon, CONCERN_WORDS, Empty, Loading } from "./parts/basics";
import { Dialogs } from "./parts/dialog";
import { SignIn } from "./parts/sign_in";
import { EventsPage } from "./pages/events";
import { FleetPage } from "./pages/fleet";
import { HealthPage } from "./pages/health";
import { JobPage } from "./pages/job";
import { JobsPage } from "./pages/jobs";
import { NowPage } from "./pages/now";
import { SettingsPage } from "./pages/settings";
import { WorkerPage } from "./pages/worker";
import { WorkersPage } from "./pages/workers";
import { WorkflowsPage } from "./pages/workflows";
import { followEvents } from "./refresh";
import { forgetAll, unreachableSince, useResource } from "./resource";
import { link, route } from "./route";
import type { Overview } from "./types";

interface PageEntry {
  name: string;
  title: string;
  isForClients: boolean;
}

const PAGES: PageEntry[] = [
  { name: "", title: "Now", isForClients: false },
  { name: "jobs", title: "Jobs", isForClients: true },
  { name: "workers", title: "Workers", isForClients: false },
  { name: "workflows", title: "Workflows", isForClients: false },
  { name: "fleet", title: "Fleet and money", isForClients: false },
  { name: "events", title: "Events", isForClients: true },
  { name: "settings", title: "Settings and audit", isForClients: false },
  { name: "health", title: "Health", isForClients: false },
];

/** A lost connection is shown after this: a stream that is opened again at once needs no alarm. */
const LOST_AFTER_MILLIS = 1500;

async function begin(): Promise<void> {
  forgetAll();
  try {
    await identify();
    startStream();
  } catch (problem) {
    if (problem instanceof ApiError) return;
    unreachableSince.value ??= Date.now();
    setTimeout(begin, 2000);
  }
}

export function App() {
  useEffect(() => {
    void begin();
    return followEvents();
  }, []);
  useKeys();
  if (needsToken.value !== null) {
    const enter = (secret: string) => {
      setToken(secret);
      void begin();
    };
    return <SignIn problem={needsToken.value} onEnter={enter} />;
  }
  if (!caller.value) {
    return (
      <main class="first-load">
        <Connection />
        <Loading lines={6} />
      </main>
    );
  }
  return (
    <div class="frame">
      <Navigation />
      <div class="main">
        <Connection />
        <StatusStrip />
        <main id="content" class={isStale() ? "stale" : ""}>
          <CurrentPage />
        </main>
      </div>
      <Dialogs />
      <Help />
    </div>
  );
}

function isStale(): boolean {
  const since = unreachableSince.value;
  return since !== null && tick.value - since > LOST_AFTER_MILLIS;
}

function CurrentPage() {
  const { parts } = route.value;
  const [name = "", id] = parts;
  const title = PAGES.find((page) => page.name === name)?.title ?? "Remuda";
  useEffect(() => {
    document.title = id ? `${id.slice(-8)} · ${title} · Remuda` : `${title} · Remuda`;
  }, [title, id]);
  const page = PAGES.find((page) => page.name === name);
  if (!isAdmin() && !page?.isForClients) return <JobsPage />;
  const pages: Record<string, () => ComponentChildren> = {
    "": () => <NowPage />,
    jobs: () => (id ? <JobPage id={id} key={id} /> : <JobsPage />),
    workers: () => (id ? <WorkerPage id={id} key={id} /> : <WorkersPage />),
    workflows: () => <WorkflowsPage shape={id} />,
    fleet: () => <FleetPage />,
    events: () => <EventsPage />,
    settings: () => <SettingsPage />,
    health: () => <HealthPage />,
  };
  const show = pages[name];
  if (show) return <>{show()}</>;
  return (
    <Empty title="There is no such page">
      <p>
        <a href={link()}>Go to the first page</a>
      </p>
    </Empty>
  );
}

function Navigation() {
  const current = route.value.parts[0] ?? "";
  const shown = PAGES.filter((page) => isAdmin() || page.isForClients);
  const signOut = () => {
    setToken(null);
    caller.value = null;
    void begin();
  };
  return (
    <nav aria-label="pages">
      <a class="skip" href="#content" onClick={skipToContent}>
        Skip to the content
      </a>
      <a class="brand" href={link()}>
        Remuda
      </a>
      <ul>
        {shown.map((page) => (
          <li key={page.name}>
            <a href={link(page.name)} aria-current={current === page.name ? "page" : undefined}>
              {page.title}
            </a>
          </li>
        ))}
      </ul>
      <div class="nav-foot">
        {token() && (
          <button type="button" class="plain" onClick={signOut}>
            Sign out {caller.value?.name}
          </button>
        )}
        <span class="muted keys-hint">
          <kbd>?</kbd> keys
        </span>
      </div>
    </nav>
  );
}

function skipToContent(event: Event): void {
  event.preventDefault();
  const content = document.getElementById("content");
  content?.setAttribute("tabindex", "-1");
  content?.focus();
}

function Connection() {
  const since = unreachableSince.value;
  if (!isStale() || since === null) return <div class="connection" role="status" />;
  return (
    <div class="connection lost" role="status">
      <ConcernIcon concern="handled" /> Connection to the plane lost {duration(tick.value - since)} ago, trying again.
      What you see is from then.
    </div>
  );
}

/** The plane's sentence on every page but the first, which shows it large. */
function StatusStrip() {
  const isFirst = route.value.parts.length === 0;
  const { data } = useResource<Overview>(isAdmin() ? "/remuda/v1/overview" : null, 5);
  if (isFirst || !data) return null;
  const { concern, text } = data.summary;
  return (
    <a class={`strip ${concern}`} href={link()} title={isStreaming.value ? "live" : "not live"}>
      <ConcernIcon concern={concern} />
      <span class="offscreen">{CONCERN_WORDS[concern]}: </span>
      {text}
    </a>
  );
}

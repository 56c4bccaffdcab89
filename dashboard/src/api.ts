// Requests to the plane. The token is kept for this tab only and sent as a header; the browser's own password dialog never
// opens, because credentials are left out of every request.

import { signal } from "@preact/signals";
import type { Caller } from "./types";

const TOKEN_KEY = "remuda.token";

/** Why the page cannot read the plane, in the words of the plane. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

export const caller = signal<Caller | null>(null);
/** Set while the plane refuses what this tab has: the reason, for the form that asks for a token. */
export const needsToken = signal<string | null>(null);

export function token(): string | null {
  return sessionStorage.getItem(TOKEN_KEY);
}

export function setToken(secret: string | null): void {
  if (secret) sessionStorage.setItem(TOKEN_KEY, secret);
  else sessionStorage.removeItem(TOKEN_KEY);
}

export function headers(extra?: Record<string, string>): Record<string, string> {
  const secret = token();
  return { ...(secret ? { Authorization: `Bearer ${secret}` } : {}), ...extra };
}

export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const response = await fetch(path, {
    ...init,
    credentials: "omit",
    cache: "no-store",
    headers: headers(init.headers as Record<string, string> | undefined),
  });
  if (response.ok) return response;
  const problem = await readProblem(response);
  if (problem.status === 401) needsToken.value = token() ? problem.message : "";
  throw problem;
}

async function readProblem(response: Response): Promise<ApiError> {
  try {
    const { error } = await response.json();
    return new ApiError(response.status, error.code, error.message);
  } catch {
    return new ApiError(response.status, "unreadable", `The plane answered ${response.status}.`);
  }
}

export async function get<T>(path: string): Promise<T> {
  return (await request(path)).json();
}

/** An action of a person. */
export async function act<T>(method: "POST" | "DELETE" | "PUT", path: string, body?: unknown): Promise<T> {
  const init: RequestInit = { method };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers = { "Content-Type": "application/json" };
  }
  return (await request(path, init)).json();
}

/** Finds out what this tab may see. */
export async function identify(): Promise<void> {
  caller.value = await get<Caller>("/remuda/v1/me");
  needsToken.value = null;
}

export function isAdmin(): boolean {
  return caller.value?.role === "admin";
}

/** The few names of Cloudflare's runtime that the Worker uses. */

declare module "cloudflare:workers" {
  /** Keeps the current request's context alive until the work has settled. */
  export function waitUntil(work: Promise<unknown>): void;
}

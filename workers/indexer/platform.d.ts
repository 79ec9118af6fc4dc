/** The few names of Cloudflare's runtime that the Durable Object uses. */

declare module "cloudflare:workers" {
  export interface DurableObjectStorage {
    getAlarm(): Promise<number | null>;
    /** Milliseconds since the Unix epoch. */
    setAlarm(atMs: number): Promise<void>;
  }

  export interface DurableObjectState {
    readonly storage: DurableObjectStorage;
    /** Ends this instance; the next event makes a new one. */
    abort(reason?: string): void;
  }

  export class DurableObject<Bindings = unknown> {
    protected readonly ctx: DurableObjectState;
    protected readonly env: Bindings;
    constructor(ctx: DurableObjectState, env: Bindings);
  }
}

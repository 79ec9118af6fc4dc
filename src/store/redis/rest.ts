/** The Upstash client, set up so that nothing is guessed, waited for or told that was not asked for. */

import { Redis } from "@upstash/redis/cloudflare";
import type { CommandOutcome, SendPipeline } from "./scripts.ts";

/** One try more if a connection fails. */
const RETRIES = 1;

export function restPipeline(url: string, token: string): SendPipeline {
  const client = new PipelineClient(url, token);
  return (commands, signal) => client.send(commands, signal);
}

class PipelineClient extends Redis {
  private readonly current: { signal: AbortSignal | null };

  constructor(url: string, token: string) {
    const current: { signal: AbortSignal | null } = { signal: null };
    super({
      url,
      token,
      // As a function: with a plain signal the client takes a timeout for a reply.
      signal: () => current.signal!,
      retry: { retries: RETRIES, backoff: () => 0 },
      automaticDeserialization: false,
      enableAutoPipelining: false,
      enableTelemetry: false,
      readYourWrites: false,
      // Replies are ASCII: without base64 they are a quarter shorter.
      responseEncoding: false,
      // Means that a request outlives its page, for which bodies must be small; connections are kept open regardless.
      keepAlive: false,
    });
    this.current = current;
  }

  /** The commands are ready as they are: the client's own pipeline would build an object of hundreds of methods for each. */
  async send(commands: readonly (readonly string[])[], signal: AbortSignal): Promise<CommandOutcome[]> {
    // The client asks for the signal while request() is being called, before anything else can run.
    this.current.signal = signal;
    const reply: unknown = await this.client.request({ path: ["pipeline"], body: commands as unknown[] });
    return Array.isArray(reply) ? reply : [];
  }
}

/** The indexer Worker, with a Durable Object that a test can end at any moment and that wakes sooner. */

import type { IndexerBindings } from "../../workers/indexer/environment.ts";
import entry from "../../workers/indexer/index.ts";
import { IndexerObject as Original } from "../../workers/indexer/object.ts";

export class IndexerObject extends Original {
  protected override readonly alarmEveryMs = 1_000;

  override fetch(request: Request): Promise<Response> {
    if (new URL(request.url).pathname === "/abort") this.ctx.abort("the test says so");
    return super.fetch(request);
  }
}

export default {
  ...entry,
  async fetch(request: Request, env: IndexerBindings): Promise<Response> {
    if (new URL(request.url).pathname !== "/abort") return entry.fetch(request, env);
    await env.INDEXER.get(env.INDEXER.idFromName("eu")).fetch(request);
    return new Response();
  },
};

/** One rank's load: what the agent carries itself, and what else the engine's metrics show (design D6). */

import type { LoadReport } from "../../src/fleet/types.ts";
import type { Plan } from "../../src/plan/index.ts";

/** What a scrape said of the rank; null where the engine does not say. */
export interface Scrape {
  /** KV blocks in use by requests. */
  readonly activeBlocks: number | null;
  readonly running: number | null;
  readonly waiting: number | null;
}

export type Load = Pick<LoadReport, "activeBlocks" | "prefillTokens" | "running" | "waiting">;

interface Carried {
  readonly promptTokens: number;
  readonly plannedBlocks: number;
  blocks: number;
  /** Prompt tokens still to be computed; 0 after the first data. */
  prefillTokens: number;
}

/**
 * Rule of combination: what a scrape shows above the agent's own count *at that moment* is traffic that goes past the agent; until the
 * next scrape it is added to the agent's own count, which is always current. So own requests count at once, direct
 * traffic counts too, and nothing counts twice. Blocks that requests share count in each of them, as in the gateways' reservations;
 * the engine counts them once, which only makes the surplus smaller.
 *
 * Prompt tokens not yet computed are the agent's own: engines do not publish them. Until the first scrape, and after
 * scrapes have failed for long, all but these are null if the engine is to be scraped: its load is not known, which is
 * not idleness.
 */
export class RankLoad {
  readonly #blockSize: number;
  readonly #carried = new Map<string, Carried>();
  #admitted: string[] = [];
  #blocks = 0;
  #prefillTokens = 0;
  #known: boolean;
  #directBlocks = 0;
  #directRequests = 0;
  #waiting: number | null = null;

  /** `scraped`: metrics will come, so nothing is known before they do. */
  constructor(blockSize: number, scraped: boolean) {
    this.#blockSize = blockSize;
    this.#known = !scraped;
  }

  /** Requests that the agent carries here. */
  get carried(): number {
    return this.#carried.size;
  }

  admitted({ requestId, load }: Plan): void {
    this.finished(requestId);
    const prefillTokens = Math.max(0, load.promptTokens - load.overlapTokens);
    this.#carried.set(requestId, {
      promptTokens: load.promptTokens,
      plannedBlocks: load.blocks,
      blocks: load.blocks,
      prefillTokens,
    });
    this.#blocks += load.blocks;
    this.#prefillTokens += prefillTokens;
    this.#admitted.push(requestId);
  }

  firstData(requestId: string): void {
    const request = this.#carried.get(requestId);
    if (request === undefined) return;
    this.#prefillTokens -= request.prefillTokens;
    request.prefillTokens = 0;
  }

  /** True if the request now fills another block. */
  progressed(requestId: string, generatedTokens: number): boolean {
    const request = this.#carried.get(requestId);
    if (request === undefined) return false;
    const grown =
      this.#blocksOf(request.promptTokens + generatedTokens) - this.#blocksOf(request.promptTokens);
    const blocks = Math.max(request.blocks, request.plannedBlocks + grown);
    this.#blocks += blocks - request.blocks;
    const filled = blocks !== request.blocks;
    request.blocks = blocks;
    return filled;
  }

  /** True if the agent carried it. */
  finished(requestId: string): boolean {
    const request = this.#carried.get(requestId);
    if (request === undefined) return false;
    this.#carried.delete(requestId);
    this.#blocks -= request.blocks;
    this.#prefillTokens -= request.prefillTokens;
    return true;
  }

  scraped({ activeBlocks, running, waiting }: Scrape): void {
    this.#known = true;
    this.#directBlocks = Math.max(0, (activeBlocks ?? 0) - this.#blocks);
    this.#directRequests = Math.max(0, (running ?? 0) + (waiting ?? 0) - this.#carried.size);
    this.#waiting = waiting;
  }

  /** The engine's metrics have failed for so long that what they said last means nothing. */
  unscraped(): void {
    this.#known = false;
    this.#directBlocks = 0;
    this.#directRequests = 0;
    this.#waiting = null;
  }

  /** Requests now in the engine; a waiting one is not running. */
  current(): Load {
    const requests = this.#carried.size + this.#directRequests;
    const waiting = this.#waiting === null ? null : Math.min(this.#waiting, requests);
    return {
      activeBlocks: this.#known ? this.#blocks + this.#directBlocks : null,
      prefillTokens: this.#prefillTokens,
      running: this.#known ? requests - (waiting ?? 0) : null,
      waiting: this.#known ? waiting : null,
    };
  }

  /** Ids admitted since the last call. */
  takeAdmitted(): readonly string[] {
    const admitted = this.#admitted;
    this.#admitted = [];
    return admitted;
  }

  #blocksOf(tokens: number): number {
    return Math.ceil(tokens / this.#blockSize);
  }
}

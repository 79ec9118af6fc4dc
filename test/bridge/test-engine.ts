/** A small engine with real sockets for tests: publishes KV events, serves replays and vLLM's HTTP facts, and keeps the table that is the truth. */

import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { pack } from "msgpackr";
import { Publisher, Router } from "zeromq";

export type HashForm = "integer" | "negative" | "bytes";
export type EventForm = "map" | "array";
export type ReplayForm = "with-topic" | "without-topic";

export interface TestEngineOptions {
  readonly hashes?: HashForm;
  readonly events?: EventForm;
  readonly replay?: ReplayForm | null;
  /** Batches kept for replay. */
  readonly bufferSteps?: number;
  /** Address to connect to instead of binding one. */
  readonly connectTo?: string;
  /** Address of the life before, to be bound again. */
  readonly bindTo?: string;
  readonly replayBindTo?: string;
  readonly rank?: number;
}

export const BLOCK_SIZE = 16;

interface Row {
  readonly parent: bigint | null;
  readonly tokenIds: readonly number[];
  copies: number;
}

export const LOOPBACK = "tcp://127.0.0.1:*";

/** The KV side: block table, publisher, replay socket. */
export class TestEngine {
  readonly table = new Map<bigint, Row>();
  sequence = 0;
  readonly replaysServed: number[] = [];
  readonly #options: TestEngineOptions;
  #publisher = new Publisher({ linger: 0 });
  #router: Router | null = null;
  readonly #buffer: { sequence: number; payload: Uint8Array }[] = [];

  constructor(options: TestEngineOptions = {}) {
    this.#options = options;
  }

  static async start(options: TestEngineOptions = {}): Promise<TestEngine> {
    const engine = new TestEngine(options);
    await engine.openPublisher(options.bindTo);
    if (options.replay !== null) await engine.openRouterAt(options.replayBindTo);
    return engine;
  }

  get endpoint(): string {
    return this.#publisher.lastEndpoint!;
  }

  get replayEndpoint(): string | null {
    return this.#router?.lastEndpoint ?? null;
  }

  async openPublisher(bindTo: string = LOOPBACK): Promise<void> {
    if (this.#options.connectTo !== undefined) this.#publisher.connect(this.#options.connectTo);
    else await bindPatiently(this.#publisher, bindTo);
  }

  /** Drops the connection to subscribers and opens it again; the process lives on. */
  async blink(): Promise<void> {
    const { endpoint } = this;
    this.#publisher.close();
    this.#publisher = new Publisher({ linger: 0 });
    await this.openPublisher(endpoint);
  }

  close(): void {
    this.#publisher.close();
    this.#router?.close();
    this.#router = null;
  }

  /** Stores a chain of blocks below `parent`, one per content, and answers their hashes. */
  store(
    parent: bigint | null,
    contents: readonly number[],
    extra: Record<string, unknown> = {},
  ): { event: unknown; hashes: bigint[] } {
    const hashes: bigint[] = [];
    let above = parent;
    for (const content of contents) {
      const hash = hashOf(above, content);
      const row = this.table.get(hash) ?? { parent: above, tokenIds: tokensOf(content), copies: 0 };
      row.copies++;
      this.table.set(hash, row);
      hashes.push(hash);
      above = hash;
    }
    const tokenIds = contents.flatMap(tokensOf);
    const fields = {
      block_hashes: hashes.map((hash) => this.#wire(hash)),
      parent_block_hash: parent === null ? null : this.#wire(parent),
      token_ids: tokenIds,
      block_size: BLOCK_SIZE,
      lora_id: null,
      medium: "GPU",
      lora_name: null,
      ...extra,
    };
    return { event: this.#event("BlockStored", fields), hashes };
  }

  remove(hash: bigint): unknown {
    const row = this.table.get(hash)!;
    row.copies--;
    return this.#event("BlockRemoved", { block_hashes: [this.#wire(hash)], medium: "GPU" });
  }

  clear(): unknown {
    this.table.clear();
    return this.#event("AllBlocksCleared", {});
  }

  /** Publishes one batch; `lost`: it only reaches the replay buffer. */
  async publish(events: readonly unknown[], { lost = false }: { lost?: boolean } = {}): Promise<void> {
    await this.publishRaw(pack([1_700_000_000.5, events, this.#options.rank ?? 0]), { lost });
  }

  /** A new process: nothing cached, nothing to replay, numbers from 0. */
  forget(): void {
    this.table.clear();
    this.#buffer.length = 0;
    this.sequence = 0;
  }

  async publishRaw(payload: Uint8Array, { lost = false }: { lost?: boolean } = {}): Promise<void> {
    const sequence = this.sequence++;
    this.#buffer.push({ sequence, payload });
    if (this.#buffer.length > (this.#options.bufferSteps ?? 1_000)) this.#buffer.shift();
    if (!lost) await this.#publisher.send(["topic", bigEndian(BigInt(sequence)), payload]);
  }

  /** Depth in blocks that the strict answer gives for the chain that ends in `hash`. */
  strictDepth(hash: bigint): number {
    const path = this.#path(hash);
    const hole = path.findIndex((at) => this.#copies(at) === 0);
    return hole < 0 ? path.length : hole;
  }

  /** Token ids from the root to the end of this block. */
  promptOf(hash: bigint): number[] {
    return this.#path(hash).flatMap((at) => [...this.table.get(at)!.tokenIds]);
  }

  #copies(hash: bigint): number {
    return this.table.get(hash)?.copies ?? 0;
  }

  #path(hash: bigint): bigint[] {
    const path: bigint[] = [];
    for (let at: bigint | null = hash; at !== null; at = this.table.get(at)!.parent) path.unshift(at);
    return path;
  }

  #event(type: string, fields: Readonly<Record<string, unknown>>): unknown {
    return this.#options.events === "array" ? [type, ...Object.values(fields)] : { type, ...fields };
  }

  #wire(hash: bigint): unknown {
    if (this.#options.hashes === "bytes") return Buffer.concat([Buffer.alloc(24, 7), bigEndian(hash)]);
    return this.#options.hashes === "negative" ? BigInt.asIntN(64, hash) : hash;
  }

  async openRouterAt(bindTo: string = LOOPBACK): Promise<void> {
    const router = new Router({ linger: 0 });
    this.#router = router;
    await bindPatiently(router, bindTo);
    void this.#serveReplays(router);
  }

  async #serveReplays(router: Router): Promise<void> {
    try {
      for await (const [peer, , start] of router) {
        const from = Number(start!.readBigUInt64BE());
        this.replaysServed.push(from);
        const topic = this.#options.replay === "without-topic" ? [] : ["topic"];
        for (const { sequence, payload } of this.#buffer.filter((batch) => batch.sequence >= from)) {
          await router.send([peer!, "", ...topic, bigEndian(BigInt(sequence)), payload]);
        }
        await router.send([peer!, "", ...topic.map(() => ""), bigEndian(0xffff_ffff_ffff_ffffn), ""]);
      }
    } catch {
      // Closed in the middle of an answer, as an engine that dies is.
    }
  }
}

/** The port of a socket that was just closed is free a moment later. */
async function bindPatiently(socket: Publisher | Router, address: string): Promise<void> {
  for (let attempt = 0; ; attempt++) {
    try {
      await socket.bind(address);
      return;
    } catch (thrown) {
      if (attempt > 100) throw thrown;
      await new Promise((resolve) => setTimeout(resolve, 10));
    }
  }
}

function bigEndian(value: bigint): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64BE(value);
  return bytes;
}

/** Commits to parent and content, all 64 bits in use. */
function hashOf(parent: bigint | null, content: number): bigint {
  return BigInt.asUintN(
    64,
    ((parent ?? 0x1234_5678_9abc_def1n) * 0x9e37_79b9_7f4a_7c15n) ^
      (BigInt(content + 1) * 0xc2b2_ae3d_27d4_eb4fn),
  );
}

function tokensOf(content: number): number[] {
  return Array.from({ length: BLOCK_SIZE }, (_, i) => content * 100 + i);
}

/** The HTTP side: what an agent asks of a vLLM engine. Fields may be changed while it runs. */
export class TestEngineHttp {
  healthy = true;
  adapters: string[] = [];
  /** Null: asked for them, it fails. */
  metrics: string | null = metricsText({});
  eventSources: unknown = null;
  url = "";
  readonly #server: Server;

  constructor() {
    this.#server = createServer((request, response) => {
      const [status, body] = this.#answer(request.url ?? "");
      response.writeHead(status, { "content-type": "application/json", connection: "close" });
      response.end(body);
    });
  }

  static async start(): Promise<TestEngineHttp> {
    const http = new TestEngineHttp();
    await new Promise<void>((resolve) => http.#server.listen(0, "127.0.0.1", resolve));
    http.url = `http://127.0.0.1:${(http.#server.address() as AddressInfo).port}`;
    return http;
  }

  close(): void {
    this.#server.close();
    this.#server.closeAllConnections();
  }

  #answer(path: string): [number, string] {
    if (!this.healthy) return [503, ""];
    if (path === "/health") return [200, ""];
    if (path === "/version") return [200, JSON.stringify({ version: "0.32.0" })];
    if (path === "/metrics") return this.metrics === null ? [500, ""] : [200, this.metrics];
    if (path === "/kv_event_sources" && this.eventSources !== null)
      return [200, JSON.stringify(this.eventSources)];
    if (path === "/v1/models") {
      const base = { id: "served", root: "/models/tiny", parent: null, max_model_len: 4096 };
      const adapters = this.adapters.map((id) => ({ id, root: id, parent: "served", max_model_len: null }));
      return [200, JSON.stringify({ object: "list", data: [base, ...adapters] })];
    }
    return [404, JSON.stringify({ detail: "Not Found" })];
  }
}

export interface MetricsFacts {
  readonly blockSize?: number;
  readonly totalBlocks?: number;
  readonly startSeconds?: number;
  readonly ranks?: number;
  readonly usage?: number;
  readonly running?: number;
  readonly waiting?: number;
}

export function metricsText(facts: MetricsFacts): string {
  const {
    blockSize = BLOCK_SIZE,
    totalBlocks = 1_000,
    startSeconds = 1.7e9,
    ranks = 1,
    usage = 0,
    running = 0,
    waiting = 0,
  } = facts;
  const lines = [`process_start_time_seconds ${startSeconds}`];
  for (let rank = 0; rank < ranks; rank++) {
    const labels = `engine="${rank}",model_name="served"`;
    lines.push(
      `vllm:cache_config_info{block_size="${blockSize}",engine="${rank}",num_gpu_blocks="${totalBlocks}"} 1.0`,
      `vllm:kv_cache_usage_perc{${labels}} ${usage}`,
      `vllm:num_requests_running{${labels}} ${running}`,
      `vllm:num_requests_waiting{${labels}} ${waiting}`,
      `vllm:num_requests_waiting_by_reason{${labels},reason="capacity"} 99`,
    );
  }
  return `${lines.join("\n")}\n`;
}

/** Polls until it holds; fails after `withinMs` with the last value of `show`. */
export async function until(holds: () => boolean, what: string, withinMs = 10_000): Promise<void> {
  const end = performance.now() + withinMs;
  while (!holds()) {
    if (performance.now() > end) throw new Error(`still not: ${what}`);
    await new Promise((resolve) => setTimeout(resolve, 5));
  }
}

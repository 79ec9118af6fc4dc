/** One rank's event sockets: PUB for live batches, ROUTER for replay, as vLLM's publisher thread serves them. */

import { Publisher, Router } from "zeromq";
import type { KvEvent } from "./block-manager.ts";
import { encodeBatch } from "./kv-wire.ts";
import type { MisbehaviourSwitch } from "./misbehaviour.ts";

export interface PublisherOptions {
  readonly endpoint: string;
  /** The configured string, which decides between bind and connect; a restart binds the address it had before. */
  readonly bindsLike: string;
  readonly replayEndpoint: string | null;
  readonly topic: string;
  readonly bufferSteps: number;
  readonly highWaterMark: number;
  readonly rank: number;
  readonly blockSize: number;
  /** Interface that `*` stands for: the mock never listens wider than its HTTP host. */
  readonly host: string;
  readonly misbehaviour: MisbehaviourSwitch;
  readonly unixSeconds: () => number;
}

interface Batch {
  readonly seq: Buffer;
  readonly payload: Buffer;
}

const END_SEQ = Buffer.alloc(8, 0xff);
const EMPTY = Buffer.alloc(0);
const BIND_ATTEMPTS = 50;
const BIND_RETRY_MS = 20;

/** vLLM guesses from the string: these are bound, all others connected to. */
export function isBound(endpoint: string): boolean {
  return /\*|::/.test(endpoint) || /^(ipc|inproc):\/\//.test(endpoint);
}

/** Rank r's endpoint: port + r for TCP, a suffix for `inproc`. Port 0 stays 0. */
export function rankEndpoint(endpoint: string, rank: number): string {
  if (rank === 0) return endpoint;
  if (endpoint.startsWith("inproc://")) return `${endpoint}_dp${rank}`;
  return endpoint.replace(/:(\d+)$/, (_, port: string) => `:${port === "0" ? 0 : Number(port) + rank}`);
}

export class KvPublisher {
  readonly #options: PublisherOptions;
  readonly #buffer: Batch[] = [];
  readonly #topic: Buffer;
  readonly #publisher: Publisher;
  #router: Router | null = null;
  #endpoint = "";
  #replayEndpoint: string | null = null;
  #seq = 0n;
  #sending: Promise<unknown> = Promise.resolve();
  #closed = false;

  private constructor(options: PublisherOptions) {
    this.#options = options;
    this.#topic = Buffer.from(options.topic);
    this.#publisher = new Publisher({ sendHighWaterMark: options.highWaterMark, linger: 0 });
  }

  /** Opens the sockets. Errors: what zeromq throws when an address is taken. */
  static async open(options: PublisherOptions): Promise<KvPublisher> {
    const opened = new KvPublisher(options);
    try {
      await opened.#listen();
    } catch (error) {
      opened.close();
      throw error;
    }
    return opened;
  }

  async #listen(): Promise<void> {
    const { endpoint, bindsLike, replayEndpoint } = this.#options;
    if (isBound(bindsLike)) this.#endpoint = await this.#bind(this.#publisher, endpoint);
    else {
      this.#publisher.connect(endpoint);
      this.#endpoint = endpoint;
    }
    if (replayEndpoint === null) return;
    const router = new Router({ linger: 0 });
    this.#router = router;
    this.#replayEndpoint = await this.#bind(router, replayEndpoint);
    void this.#serveReplay(router);
  }

  /** Where batches are published: a subscriber connects here if it is bound, binds here otherwise. */
  get endpoint(): string {
    return this.#endpoint;
  }

  get replayEndpoint(): string | null {
    return this.#replayEndpoint;
  }

  /** Number of the next batch. */
  get nextSeq(): bigint {
    return this.#seq;
  }

  /** Sends one step's events as one batch. */
  publish(events: readonly KvEvent[]): void {
    const { misbehaviour } = this.#options;
    const announced: KvEvent[] = [];
    const late: KvEvent[] = [];
    for (const event of events) {
      const orphaned =
        event.type === "stored" && event.digests.length > 1 && misbehaviour.take("orphanParents");
      if (!orphaned) announced.push(event);
      else {
        const [first, rest] = splitFirst(event);
        announced.push(rest);
        if (misbehaviour.state.orphansHeal) late.push(first);
      }
    }
    this.#publishBatch(announced);
    if (late.length > 0) this.#publishBatch(late);
  }

  #publishBatch(events: readonly KvEvent[]): void {
    const { misbehaviour, rank, blockSize, unixSeconds } = this.#options;
    const { state } = misbehaviour;
    const payload = encodeBatch(unixSeconds(), events, rank, blockSize, state);
    const seq = Buffer.alloc(8);
    seq.writeBigUInt64BE(this.#seq++);
    const dropped = misbehaviour.take("dropBatches");
    if (!(dropped && state.dropFromReplay)) this.#buffer.push({ seq, payload });
    const keep = Math.min(this.#options.bufferSteps, state.replaySteps ?? Number.POSITIVE_INFINITY);
    if (this.#buffer.length > keep) this.#buffer.splice(0, this.#buffer.length - keep);
    if (!dropped) this.#send([this.#topic, seq, payload]);
  }

  /** zeromq allows one send at a time; a PUB socket never waits, so the queue stays short. */
  #send(frames: Buffer[]): void {
    this.#sending = this.#sending.then(async () => {
      if (!this.#closed) await this.#publisher.send(frames);
    });
    this.#sending.catch(() => undefined);
  }

  async #serveReplay(router: Router): Promise<void> {
    try {
      for await (const frames of router) {
        const [identity, delimiter, start] = frames;
        if (frames.length !== 3 || delimiter?.length !== 0) continue;
        if (this.#options.misbehaviour.state.replay === "on") await this.#replay(router, identity!, start!);
      }
    } catch (error) {
      if (!this.#closed) throw error;
    }
  }

  /** Everything kept from `start` on, then the end marker. A start of any length is read as a big-endian number. */
  async #replay(router: Router, identity: Buffer, start: Buffer): Promise<void> {
    const from = BigInt(`0x${start.toString("hex") || "0"}`);
    const withTopic = this.#options.misbehaviour.state.replayFrames === "with-topic";
    for (const { seq, payload } of [...this.#buffer]) {
      if (seq.readBigUInt64BE() < from) continue;
      await router.send(
        withTopic ? [identity, EMPTY, this.#topic, seq, payload] : [identity, EMPTY, seq, payload],
      );
    }
    await router.send(
      withTopic ? [identity, EMPTY, EMPTY, END_SEQ, EMPTY] : [identity, EMPTY, END_SEQ, EMPTY],
    );
  }

  /** Binds and says where. An address just given up by an earlier life may be busy for a moment. */
  async #bind(socket: Publisher | Router, endpoint: string): Promise<string> {
    const address = endpoint.replace("//*", `//${this.#options.host}`).replace(/:0$/, ":*");
    for (let attempt = 1; ; attempt++) {
      try {
        await socket.bind(address);
        return socket.lastEndpoint ?? address;
      } catch (error) {
        if (attempt >= BIND_ATTEMPTS || (error as { code?: string }).code !== "EADDRINUSE") throw error;
        await new Promise((resolve) => setTimeout(resolve, BIND_RETRY_MS));
      }
    }
  }

  close(): void {
    this.#closed = true;
    if (!this.#publisher.closed) this.#publisher.close();
    if (this.#router !== null && !this.#router.closed) this.#router.close();
  }
}

type Stored = Extract<KvEvent, { type: "stored" }>;

function splitFirst(event: Stored): [Stored, Stored] {
  const size = event.tokenIds.length / event.digests.length;
  const part = (from: number, to: number | undefined, parent: Stored["parent"]): Stored => ({
    ...event,
    digests: event.digests.slice(from, to),
    parent,
    tokenIds: event.tokenIds.slice(from * size, to === undefined ? undefined : to * size),
    extraKeys: event.extraKeys.slice(from, to),
  });
  return [part(0, 1, event.parent), part(1, undefined, event.digests[0]!)];
}

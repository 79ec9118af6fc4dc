/** One rank's event stream over ZMQ: subscription and replay socket, fed through the sequencer (engines.md §1.1, §1.8). */

import { Dealer, Subscriber } from "zeromq";
import { KedgeError } from "../../src/errors/index.ts";
import { Sequencer, type SequencerOptions, type Step } from "./sequencer.ts";

const END_OF_REPLAY = 0xffff_ffff_ffff_ffffn;
const TICK_MS = 500;

export interface StreamOptions extends Omit<SequencerOptions, "replayable"> {
  /**
   * Where events come from: `bind:tcp://…` is bound, `connect:tcp://…` connected to. A plain address is bound if it is this machine's and
   * free, else connected to: engines bind the addresses with `*` and connect to all others, so whichever end is open is ours.
   */
  readonly endpoint: string;
  /** Replay socket of the engine, always connected to; null: none. */
  readonly replayEndpoint: string | null;
  /** Only topics that begin so; empty: all. */
  readonly topic?: string;
  /** Batches in order, and resets. Called synchronously, in order; must not throw. */
  readonly onStep: (step: Exclude<Step, { kind: "replay" }>) => void;
  /** Messages that are no event frames, and failed sockets. */
  readonly onProblem: (problem: string) => void;
  /** Monotonic milliseconds. */
  readonly now?: () => number;
}

/** Opens its sockets at once and lives until `close`. Errors of the constructor: `config_invalid` for an endpoint that cannot be used. */
export class RankStream {
  readonly #options: StreamOptions;
  readonly #sequencer: Sequencer;
  readonly #subscriber = new Subscriber({ linger: 0, receiveHighWaterMark: 100_000 });
  readonly #now: () => number;
  #replaySocket: Dealer | null = null;
  #ticker: ReturnType<typeof setInterval> | null = null;
  #closed = false;
  #hasConnected = false;

  constructor(options: StreamOptions) {
    this.#options = options;
    this.#now = options.now ?? (() => performance.now());
    this.#sequencer = new Sequencer({ ...options, replayable: options.replayEndpoint !== null });
    this.#subscriber.subscribe(options.topic ?? "");
    this.#subscriber.events.on("handshake", () => {
      this.#hasConnected = true;
      this.#run(this.#sequencer.connected(this.#now()));
    });
  }

  /** Resolves when the subscription is bound or connecting. Errors: `config_invalid` for an endpoint that cannot be used. */
  async open(): Promise<void> {
    const { endpoint } = this.#options;
    try {
      await attach(this.#subscriber, endpoint);
    } catch (cause) {
      throw new KedgeError(
        "config_invalid",
        `The KV event endpoint ${endpoint} cannot be used; give tcp://host:port.`,
        {
          cause,
          param: "events",
        },
      );
    }
    this.#ticker = setInterval(() => this.#run(this.#sequencer.tick(this.#now())), TICK_MS);
    this.#ticker.unref();
    void this.#receive();
  }

  get endpoint(): string {
    return this.#options.endpoint;
  }

  /** A publisher is, or was, at the other end. */
  get hasConnected(): boolean {
    return this.#hasConnected;
  }

  /** Highest engine sequence number applied; null: none. */
  get watermark(): number | null {
    return this.#sequencer.watermark;
  }

  /** The engine is known to be another process; the caller has voided what the last one said. */
  restarted(): void {
    this.#sequencer.restarted();
    this.#run(this.#sequencer.connected(this.#now()));
  }

  /** Address that is bound, as ZMQ names it; for ports that the kernel picked. */
  get boundEndpoint(): string | null {
    return this.#subscriber.lastEndpoint;
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    if (this.#ticker !== null) clearInterval(this.#ticker);
    this.#subscriber.close();
    this.#replaySocket?.close();
    this.#replaySocket = null;
  }

  async #receive(): Promise<void> {
    try {
      for await (const frames of this.#subscriber) {
        const sequence = sequenceOf(frames.at(-2));
        const payload = frames.at(-1);
        if (sequence === null || payload === undefined || sequence === END_OF_REPLAY) {
          this.#options.onProblem("a message on the event socket has no sequence number");
        } else this.#run(this.#sequencer.live(Number(sequence), payload, this.#now()));
      }
    } catch (thrown) {
      if (!this.#closed) this.#options.onProblem(`the event socket failed: ${describe(thrown)}`);
    }
  }

  #run(steps: readonly Step[]): void {
    if (this.#closed) return;
    for (const step of steps) {
      if (step.kind === "replay") void this.#replay(step.from);
      else this.#options.onStep(step);
    }
  }

  /** One dealer per replay: answers of an abandoned one die with its socket. */
  async #replay(from: number): Promise<void> {
    this.#replaySocket?.close();
    const timeout = this.#options.replayTimeoutMs ?? 10_000;
    const socket = new Dealer({ linger: 0, receiveTimeout: timeout, sendTimeout: timeout });
    this.#replaySocket = socket;
    try {
      socket.connect(this.#options.replayEndpoint ?? "");
      const start = Buffer.alloc(8);
      start.writeBigUInt64BE(BigInt(from));
      await socket.send(["", start]);
      for await (const frames of socket) {
        if (this.#replaySocket !== socket) return;
        // Older engines send [delimiter, sequence, payload], newer ones put the topic before the sequence.
        const sequence = sequenceOf(frames.at(-2));
        if (sequence === END_OF_REPLAY) break;
        const payload = frames.at(-1);
        if (sequence === null || payload === undefined) throw new Error("an answer has no sequence number");
        this.#run(this.#sequencer.replayed(Number(sequence), payload, this.#now()));
      }
      if (this.#replaySocket === socket) this.#run(this.#sequencer.replayEnded(this.#now()));
    } catch (thrown) {
      if (this.#closed || this.#replaySocket !== socket) return;
      this.#options.onProblem(`replay from ${from} failed: ${describe(thrown)}`);
      this.#run(this.#sequencer.replayFailed(this.#now()));
    } finally {
      if (this.#replaySocket === socket) this.#replaySocket = null;
      socket.close();
    }
  }
}

async function attach(subscriber: Subscriber, endpoint: string): Promise<void> {
  if (endpoint.startsWith("bind:")) {
    await subscriber.bind(endpoint.slice("bind:".length));
    return;
  }
  if (!endpoint.startsWith("connect:")) {
    // Fails where the address is the engine's socket or another machine's; connecting says what is wrong with a bad one.
    const bound = await subscriber.bind(endpoint).then(
      () => true,
      () => false,
    );
    if (bound) return;
  }
  subscriber.connect(endpoint.replace(/^connect:/, ""));
}

/** 8 bytes, big-endian, unsigned. */
function sequenceOf(frame: Uint8Array | undefined): bigint | null {
  if (frame === undefined || frame.length !== 8) return null;
  return new DataView(frame.buffer, frame.byteOffset, 8).getBigUint64(0);
}

function describe(thrown: unknown): string {
  return thrown instanceof Error ? thrown.message : String(thrown);
}

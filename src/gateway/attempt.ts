/** One try of a request at one worker: nothing reaches the client before first data, and no cut stream ends as a whole one (design D9). */

import { KedgeError, toKedgeError } from "../errors/index.ts";
import type { Plan } from "../plan/index.ts";
import type {
  BodySink,
  BodySource,
  TransportRequest,
  TransportResponse,
  WorkerTransport,
} from "../plan/transport.ts";
import { errorEvent } from "../stream/error-event.ts";
import { SseScanner } from "../stream/sse.ts";
import { failureError, statusError } from "../stream/upstream.ts";
import { isRecord, readFailure, readUsage, tryParse, type Usage } from "../stream/usage.ts";
import { type AnswerWriter, type ClientConnection, concatBytes } from "./client.ts";
import type { Clock } from "./deps.ts";
import type { AbortPhase } from "./metrics.ts";

/** A preamble without a following token waits so long for a failure to show; then the client may as well have it. */
const PREAMBLE_HOLD_MS = 1_000;
/** Largest answer that is held to be judged as a whole. */
const MAX_WHOLE_BYTES = 64 * 1024 * 1024;

const SSE_HEADERS = { "cache-control": "no-cache", "x-accel-buffering": "no" };

export interface AttemptInput {
  readonly transport: WorkerTransport;
  readonly clock: Clock;
  readonly client: ClientConnection;
  readonly plan: Plan;
  readonly request: TransportRequest;
  /** The usage chunk was asked for by the gateway alone. */
  readonly dropUsage: boolean;
  /** Headers of the answer besides those that come from the engine. */
  readonly headers: Readonly<Record<string, string>>;
  /** Time for the first data of this try, null for the deadline alone. */
  readonly firstDataTimeoutMs: number | null;
  readonly stallTimeoutMs: number;
  /** On the clock; null: none. */
  readonly deadlineAtMs: number | null;
  readonly watcher: AttemptWatcher;
}

/** Told of what happens on the way. */
export interface AttemptWatcher {
  /** First data of a stream. */
  firstData(nowMs: number): void;
  /** A later delivery of a stream, and the time since the one before. */
  delivered(gapMs: number): void;
}

export type AttemptResult =
  /** The client has a complete answer; `status` may be its own fault. `seen`: it was looked at to its end, which may else have been bad. */
  | {
      readonly kind: "answered";
      readonly status: number;
      readonly usage: Usage | null;
      readonly seen: boolean;
    }
  /** A stream was begun and failed; the client was told in-band. */
  | { readonly kind: "broken"; readonly error: KedgeError }
  | { readonly kind: "abandoned"; readonly phase: AbortPhase }
  /** Nothing was sent; another worker may be tried if the error allows it. */
  | { readonly kind: "failed"; readonly error: KedgeError };

type State = "headers" | "first-data" | "whole" | "streaming" | "done";

/** Used once. */
export class Attempt implements BodySink {
  private readonly input: AttemptInput;
  private readonly abortController = new AbortController();
  private readonly scanner: SseScanner;
  private readonly out: Uint8Array[] = [];
  private state: State = "headers";
  private source: BodySource | null = null;
  private status = 0;
  private contentType = "application/json";
  private writer: AnswerWriter | null = null;
  private timer: unknown = null;
  private lastDataMs = 0;
  private held = false;
  private vouched = false;
  /** The rest of the stream goes to the client without passing through here: where its events end is not known. */
  private piped = false;
  private preambleHeld = false;
  private wholeChunks: Uint8Array[] = [];
  private wholeBytes = 0;
  private started: (() => void) | null = null;
  private finished!: (result: AttemptResult) => void;
  private readonly result = new Promise<AttemptResult>((resolve) => {
    this.finished = resolve;
  });

  constructor(input: AttemptInput) {
    this.input = input;
    this.scanner = new SseScanner(input.dropUsage);
  }

  /** Settles when the try is over, for a stream at its end. `onStarted` is called at the first data of a stream. */
  run(onStarted: () => void): Promise<AttemptResult> {
    const { transport, plan, request } = this.input;
    this.started = onStarted;
    this.armFirstData();
    transport.send(plan, request, this.abortController.signal).then(
      (response) => this.receive(response),
      (error) => this.fail(toKedgeError(error)),
    );
    return this.result;
  }

  /** The client has left: the engine is aborted at once. */
  abandon(): void {
    if (this.state === "done") return;
    const phase =
      this.state === "headers"
        ? "before_headers"
        : this.state === "streaming"
          ? "streaming"
          : "before_first_data";
    this.finish({ kind: "abandoned", phase });
    this.hangUp();
  }

  // BodySink

  data(chunk: Uint8Array): boolean {
    if (this.state === "streaming" || this.state === "first-data") return this.streamData(chunk);
    if (this.state !== "whole") return true;
    this.wholeChunks.push(chunk);
    this.wholeBytes += chunk.length;
    if (this.wholeBytes > MAX_WHOLE_BYTES) {
      this.giveUp(new KedgeError("upstream_error", `The answer is larger than ${MAX_WHOLE_BYTES} bytes.`));
    }
    return true;
  }

  end(): void {
    if (this.state === "whole") this.judgeWhole();
    else if (this.state === "first-data" || this.state === "streaming") this.streamEnd();
  }

  fail(error: KedgeError): void {
    if (this.state === "streaming") this.breakOff(error);
    else if (this.state !== "done") {
      // Cut before anything was sent: what is final inside a stream is curable here.
      const curable = error.code === "stream_interrupted";
      this.finish({
        kind: "failed",
        error: curable ? new KedgeError("upstream_error", error.message, { cause: error }) : error,
      });
    }
  }

  private receive(response: TransportResponse): void {
    if (this.state === "done") {
      response.body.cancel();
      return;
    }
    this.source = response.body;
    this.vouched = response.vouched ?? false;
    this.status = response.status;
    this.contentType = response.headers["content-type"] ?? "application/json";
    const error = statusError(response.status, response.headers["retry-after"]);
    if (error !== null) {
      this.giveUp(error);
      return;
    }
    const isStream = response.status < 300 && this.contentType.startsWith("text/event-stream");
    this.state = isStream ? "first-data" : "whole";
    response.body.start(this);
  }

  private streamData(chunk: Uint8Array): boolean {
    const { scanner, out } = this;
    scanner.push(chunk, out);
    if (this.state === "streaming") this.noteDelivery();
    else if (!this.judgeStart()) return true;
    if (!this.mayPipe()) return this.flush();
    scanner.release(out);
    this.flush();
    void this.pipe();
    return true;
  }

  /** A vouched stream needs no look inside, once its beginning is known to be good. */
  private mayPipe(): boolean {
    const { scanner, writer, source, vouched } = this;
    const isOpen = !scanner.sawDone && scanner.error === null;
    return vouched && isOpen && writer?.pipe !== undefined && source?.rest !== undefined;
  }

  /** Silence is the sender's to judge from here on; the deadline stays. Usage is not seen. */
  private async pipe(): Promise<void> {
    this.piped = true;
    this.disarm();
    this.armPipe();
    const end = await this.writer!.pipe!(this.source!.rest!());
    if (this.state !== "streaming") return;
    if (end === "gone") this.abandon();
    else if (end === "cut") {
      this.breakOff(new KedgeError("stream_interrupted", "The engine's stream was cut off before its end."));
    } else {
      this.writer!.end();
      this.finish({ kind: "answered", status: 200, usage: this.scanner.usage, seen: false });
    }
  }

  /** True once the stream may go to the client. */
  private judgeStart(): boolean {
    const { scanner } = this;
    const failure = scanner.error && failureError(scanner.error);
    if (scanner.dataEvents > 0 || (scanner.error !== null && failure === null)) {
      this.begin();
      return true;
    }
    if (failure !== null) this.giveUp(failure);
    else if (scanner.sawDone) {
      this.giveUp(new KedgeError("upstream_error", "The engine ended its stream before any data."));
    } else if (scanner.sawPreamble) this.holdPreamble();
    return false;
  }

  private begin(): void {
    const { client, clock, headers, watcher } = this.input;
    this.state = "streaming";
    this.lastDataMs = clock.now();
    watcher.firstData(this.lastDataMs);
    this.disarm();
    this.armGuard();
    const answer = { ...headers, ...SSE_HEADERS, "content-type": this.contentType };
    this.writer = client.begin(200, answer, () => this.drained());
    this.started?.();
  }

  private noteDelivery(): void {
    const nowMs = this.input.clock.now();
    if (nowMs > this.lastDataMs) this.input.watcher.delivered(nowMs - this.lastDataMs);
    this.lastDataMs = nowMs;
  }

  private flush(): boolean {
    let more = true;
    for (const piece of this.out) if (!this.writer!.write(piece)) more = false;
    this.out.length = 0;
    if (!more) this.held = true;
    return more;
  }

  private drained(): void {
    if (!this.held || this.state !== "streaming") return;
    this.held = false;
    this.lastDataMs = this.input.clock.now();
    this.source?.resume();
  }

  private streamEnd(): void {
    const clean = this.scanner.end(this.out);
    if (this.state === "first-data" && !this.judgeStart()) {
      this.fail(new KedgeError("upstream_error", "The engine ended its stream before any data."));
      return;
    }
    if (!clean) {
      this.breakOff(new KedgeError("stream_interrupted", "The engine's stream ended without its end mark."));
      return;
    }
    this.flush();
    this.writer!.end();
    const { error: failure, usage } = this.scanner;
    const error = failure && failureError(failure);
    if (error !== null) this.finish({ kind: "broken", error });
    else this.finish({ kind: "answered", status: failure?.status ?? 200, usage, seen: true });
  }

  /** The stream has failed after its first data: say so in it, and end it without an end mark. */
  private breakOff(error: KedgeError): void {
    this.flush();
    this.writer!.write(errorEvent(error, this.piped || this.scanner.insideEvent));
    this.writer!.end();
    this.finish({ kind: "broken", error });
    this.hangUp();
  }

  private judgeWhole(): void {
    const body = concatBytes(this.wholeChunks, this.wholeBytes);
    if (this.status < 300) {
      const answer = tryParse(new TextDecoder().decode(body));
      if (!isRecord(answer)) {
        this.fail(new KedgeError("upstream_error", "The engine's answer is not a JSON object."));
        return;
      }
      const failure = readFailure(answer);
      const error = failure && failureError(failure);
      if (error !== null) this.fail(error);
      else this.answer(failure?.status ?? this.status, body, readUsage(answer));
    } else this.answer(this.status, body, null);
  }

  private answer(status: number, body: Uint8Array, usage: Usage | null): void {
    this.input.client.send(status, { ...this.input.headers, "content-type": this.contentType }, body);
    this.finish({ kind: "answered", status, usage, seen: true });
  }

  private giveUp(error: KedgeError): void {
    this.finish({ kind: "failed", error });
    this.hangUp();
  }

  private hangUp(): void {
    if (this.source === null) this.abortController.abort();
    else this.source.cancel();
  }

  private finish(result: AttemptResult): void {
    this.state = "done";
    this.disarm();
    this.wholeChunks = [];
    this.finished(result);
  }

  // Time

  private armFirstData(): void {
    const { clock, deadlineAtMs, firstDataTimeoutMs } = this.input;
    const remaining = deadlineAtMs === null ? null : Math.max(0, deadlineAtMs - clock.now());
    const untilDeadline =
      remaining !== null && (firstDataTimeoutMs === null || remaining <= firstDataTimeoutMs);
    const delayMs = untilDeadline ? remaining : firstDataTimeoutMs;
    if (delayMs === null) return;
    this.timer = clock.setTimeout(() => {
      this.timer = null;
      this.giveUp(
        untilDeadline
          ? deadlineExceeded()
          : new KedgeError("upstream_timeout", `No first data within ${delayMs} ms.`),
      );
    }, delayMs);
  }

  /** Engines that think without a word (a tool call is parsed first) must not run into the first-data timeout. */
  private holdPreamble(): void {
    if (this.preambleHeld) return;
    this.preambleHeld = true;
    this.disarm();
    const { clock, deadlineAtMs } = this.input;
    const remaining = deadlineAtMs === null ? PREAMBLE_HOLD_MS : Math.max(0, deadlineAtMs - clock.now());
    this.timer = clock.setTimeout(
      () => {
        this.timer = null;
        if (remaining < PREAMBLE_HOLD_MS) {
          this.giveUp(deadlineExceeded());
          return;
        }
        this.begin();
        this.flush();
      },
      Math.min(PREAMBLE_HOLD_MS, remaining),
    );
  }

  /** One timer for the whole stream, moved on when it fires: cheaper than one per chunk. */
  private armGuard(): void {
    const { clock, deadlineAtMs, stallTimeoutMs } = this.input;
    const nowMs = clock.now();
    const silentUntilMs = (this.held ? nowMs : this.lastDataMs) + stallTimeoutMs;
    const atMs = Math.min(silentUntilMs, deadlineAtMs ?? silentUntilMs);
    this.timer = clock.setTimeout(() => this.guard(), Math.max(1, atMs - nowMs));
  }

  private armPipe(): void {
    const { clock, deadlineAtMs } = this.input;
    if (deadlineAtMs === null) return;
    const delayMs = Math.max(1, deadlineAtMs - clock.now());
    this.timer = clock.setTimeout(() => {
      this.timer = null;
      this.breakOff(deadlineExceeded());
    }, delayMs);
  }

  private guard(): void {
    const { clock, deadlineAtMs, stallTimeoutMs } = this.input;
    const nowMs = clock.now();
    this.timer = null;
    if (deadlineAtMs !== null && nowMs >= deadlineAtMs) this.breakOff(deadlineExceeded());
    else if (!this.held && nowMs - this.lastDataMs >= stallTimeoutMs) {
      this.breakOff(
        new KedgeError("stream_stalled", `No data for ${stallTimeoutMs} ms; what was sent is incomplete.`),
      );
    } else this.armGuard();
  }

  private disarm(): void {
    if (this.timer === null) return;
    this.input.clock.clearTimeout(this.timer);
    this.timer = null;
  }
}

const deadlineExceeded = () => new KedgeError("deadline_exceeded", "The request ran out of time.");

/** Child processes that live and die together: each in a group of its own, ended in reverse order, its last output kept. */

import { type ChildProcess, spawn } from "node:child_process";

export interface Child {
  readonly name: string;
  readonly pid: number;
  /** Its first line of output for which `match` has an answer, as that. Rejects when it ends before or says it too late. */
  said<T>(match: (line: string) => T | null): Promise<T>;
}

export interface ChildrenOptions {
  /** One ended that nobody asked to; the error has its last output. */
  readonly onDeath: (error: Error) => void;
  readonly onLine?: (name: string, line: string) => void;
  /** Asked to end, a process is killed after this; default 5 s. */
  readonly endTimeoutMs?: number;
}

const OUTPUT_KEPT_LINES = 40;
const READY_TIMEOUT_MS = 60_000;
const END_TIMEOUT_MS = 5_000;
/** For output that is still in the pipe when a process is gone; its own children may hold the pipe open. */
const DRAIN_MS = 200;

interface Running {
  readonly name: string;
  readonly process: ChildProcess;
  readonly exited: Promise<void>;
}

/**
 * Groups of their own, so that Ctrl-C reaches the parent alone and it ends them in order; a child's own children are in
 * its group and end with it.
 */
export class Children {
  readonly #running: Running[] = [];
  readonly #options: ChildrenOptions;
  #ending = false;

  constructor(options: ChildrenOptions) {
    this.#options = options;
  }

  start(
    name: string,
    command: string,
    args: readonly string[],
    env: Readonly<Record<string, string>> = {},
  ): Child {
    const child = spawn(command, args, {
      stdio: ["ignore", "pipe", "pipe"],
      detached: true,
      env: { ...process.env, ...env },
    });
    const output = new Output(child, (line) => this.#options.onLine?.(name, line));
    const exited = new Promise<void>((resolve) => {
      child.once("exit", () => resolve());
      child.once("error", (error) => {
        output.add(error.message);
        resolve();
      });
    });
    this.#running.push({ name, process: child, exited });
    const death = exited.then(async () => {
      await output.drained();
      const error = new Error(`${name} ended. Its last words:\n${output.tail()}`);
      if (!this.#ending) this.#options.onDeath(error);
      throw error;
    });
    death.catch(() => undefined);
    return {
      name,
      pid: child.pid ?? 0,
      said: (match) => Promise.race([output.find(match, name), death]),
    };
  }

  /** Ends all, the youngest first, one after the other: whoever still writes to another has ended when that ends. */
  async end(): Promise<void> {
    this.#ending = true;
    for (const running of this.#running.splice(0).reverse())
      await endGroup(running, this.#options.endTimeoutMs ?? END_TIMEOUT_MS);
  }
}

async function endGroup({ process: child, exited }: Running, timeoutMs: number): Promise<void> {
  if (child.pid === undefined) return;
  if (child.exitCode === null && child.signalCode === null) {
    child.kill("SIGTERM");
    let timer: NodeJS.Timeout | undefined;
    const late = new Promise<void>((resolve) => {
      timer = setTimeout(resolve, timeoutMs);
    });
    await Promise.race([exited, late]);
    clearTimeout(timer);
  }
  // What it leaves behind in its group, or it itself.
  try {
    process.kill(-child.pid, "SIGKILL");
  } catch {
    return;
  }
  await exited;
}

/** Lines of both streams: the last ones kept, each offered to who waits for one. */
class Output {
  readonly #lines: string[] = [];
  readonly #waiting = new Set<(line: string) => void>();

  readonly #onLine: (line: string) => void;

  constructor(child: ChildProcess, onLine: (line: string) => void) {
    this.#onLine = onLine;
    for (const stream of [child.stdout, child.stderr]) {
      let rest = "";
      stream?.setEncoding("utf8").on("data", (text: string) => {
        const lines = (rest + text).split("\n");
        rest = lines.pop() ?? "";
        for (const line of lines) this.add(line);
      });
    }
  }

  add(line: string): void {
    this.#onLine(line);
    this.#lines.push(line);
    if (this.#lines.length > OUTPUT_KEPT_LINES) this.#lines.shift();
    for (const waiting of this.#waiting) waiting(line);
  }

  drained(): Promise<void> {
    return new Promise((resolve) => setTimeout(resolve, DRAIN_MS));
  }

  tail(): string {
    return this.#lines.join("\n");
  }

  find<T>(match: (line: string) => T | null, name: string): Promise<T> {
    return new Promise((resolve, reject) => {
      const timer = setTimeout(() => {
        this.#waiting.delete(look);
        const seconds = READY_TIMEOUT_MS / 1_000;
        reject(new Error(`${name} was not ready after ${seconds} s. Its last words:\n${this.tail()}`));
      }, READY_TIMEOUT_MS);
      timer.unref();
      const look = (line: string): void => {
        const found = match(line);
        if (found === null) return;
        this.#waiting.delete(look);
        clearTimeout(timer);
        resolve(found);
      };
      this.#waiting.add(look);
      for (const line of this.#lines) look(line);
    });
  }
}

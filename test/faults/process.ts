/** One part of the plane as a process of its own, always at the same place: killed, stopped in its tracks and started again at will. */

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";

const MAIN = ["--disable-warning=ExperimentalWarning", "src/node/cli/main.ts"];
const LINES_KEPT = 200;

const running = new Set<ChildProcess>();
process.on("exit", () => {
  for (const child of running) child.kill("SIGKILL");
});

export class KedgeProcess {
  readonly name: string;
  /** What it said last, of all its lives. */
  readonly lines: string[] = [];
  private readonly args: readonly string[];
  private readonly env: Readonly<Record<string, string>>;
  private child: ChildProcess | null = null;

  /** `args`: of the `kedge` command, with fixed ports; its first line on standard output says that it is ready. */
  constructor(name: string, args: readonly string[], env: Readonly<Record<string, string>> = {}) {
    this.name = name;
    this.args = args;
    this.env = env;
  }

  /** Of its present or last life. */
  get pid(): number | undefined {
    return this.child?.pid;
  }

  /** Resolves when it is ready. Errors: it ended before, with its last words. */
  async start(): Promise<void> {
    const child = spawn(process.execPath, [...MAIN, ...this.args], {
      env: { PATH: process.env.PATH, ...this.env },
      stdio: ["ignore", "pipe", "pipe"],
    });
    this.child = child;
    running.add(child);
    child.once("exit", () => running.delete(child));
    const ready = new Promise<void>((resolve) => {
      child.stdout.setEncoding("utf8").on("data", (text: string) => {
        this.hear(text);
        resolve();
      });
    });
    child.stderr.setEncoding("utf8").on("data", (text: string) => this.hear(text));
    const ended = once(child, "exit").then(([code]) =>
      Promise.reject(new Error(`${this.name} ended with ${code}:\n${this.lines.join("\n")}`)),
    );
    ended.catch(() => undefined);
    await Promise.race([ready, ended]);
  }

  /** Resolves when it is gone. Does nothing if it does not run. */
  async stop(signal: NodeJS.Signals = "SIGKILL"): Promise<void> {
    const { child } = this;
    if (child === null || child.exitCode !== null || child.signalCode !== null) return;
    const gone = once(child, "exit");
    child.kill("SIGCONT");
    child.kill(signal);
    await gone;
  }

  /** As a machine that hangs; `resume` lets it go on. */
  pause(): void {
    this.child?.kill("SIGSTOP");
  }

  resume(): void {
    this.child?.kill("SIGCONT");
  }

  private hear(text: string): void {
    this.lines.push(...text.split("\n").filter((line) => line !== ""));
    this.lines.splice(0, this.lines.length - LINES_KEPT);
  }
}

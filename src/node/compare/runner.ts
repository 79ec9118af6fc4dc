/** Runs one job in a process of its own and returns what it measured. */

import { type ChildProcess, fork } from "node:child_process";
import { fileURLToPath } from "node:url";
import { KedgeError } from "../../errors/index.ts";
import type { FromLoadProcess, Job, JobResult, ToLoadProcess } from "./job.ts";
import type { LoadProgress } from "./load.ts";

export interface JobHooks {
  /** Ends the run early; it then resolves with what it has. */
  readonly signal: AbortSignal;
  readonly onProgress?: (progress: LoadProgress) => void;
  readonly onWindow?: (at: "start" | "end") => void;
}

/** Errors: `internal_error` when the load process fails; its stderr is ours. */
export async function runJob(job: Job, hooks: JobHooks): Promise<JobResult> {
  const extension = import.meta.url.endsWith(".ts") ? "ts" : "js";
  const child = fork(fileURLToPath(new URL(`./load-process.${extension}`, import.meta.url)), {
    execArgv: ["--disable-warning=ExperimentalWarning"],
    serialization: "advanced",
    stdio: ["ignore", 2, 2, "ipc"],
  });
  const stop = (): void => tell(child, { type: "stop" });
  hooks.signal.addEventListener("abort", stop, { once: true });
  try {
    tell(child, { type: "run", job });
    if (hooks.signal.aborted) stop();
    return await outcome(child, hooks);
  } finally {
    hooks.signal.removeEventListener("abort", stop);
    if (child.exitCode === null) child.kill("SIGKILL");
  }
}

function tell(child: ChildProcess, message: ToLoadProcess): void {
  if (child.connected) child.send(message);
}

function outcome(child: ChildProcess, hooks: JobHooks): Promise<JobResult> {
  return new Promise((resolve, reject) => {
    const fail = (what: string): void =>
      reject(new KedgeError("internal_error", `The load process ${what}.`));
    child.on("message", (message: FromLoadProcess) => {
      if (message.type === "progress") hooks.onProgress?.(message.progress);
      else if (message.type === "window") hooks.onWindow?.(message.at);
      else if (message.type === "done") resolve(message.result);
      else fail(`failed: ${message.message}`);
    });
    child.on("error", (error) => fail(`could not be started: ${error.message}`));
    child.on("exit", (code, signal) => fail(`ended early (${signal ?? code})`));
  });
}

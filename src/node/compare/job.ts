/** One run as it is handed to the load process: plain data, and the messages between both sides. */

import { chatsFile } from "./chats-file.ts";
import type { Load, LoadProgress, LoadResult } from "./load.ts";
import type { MachineUse } from "./machine.ts";
import { type SharedPromptsSpec, sharedPrompts, type Workload } from "./workload.ts";

export type WorkloadSpec =
  | ({ readonly kind: "shared-prompts" } & SharedPromptsSpec)
  | { readonly kind: "file"; readonly text: string; readonly salt: string };

export interface Job {
  /** Origin of the gateway. */
  readonly url: string;
  readonly model: string;
  readonly headers: Readonly<Record<string, string>>;
  readonly workload: WorkloadSpec;
  readonly load: Load;
  readonly seed: number;
  readonly requests: number;
  readonly warmUpRequests: number;
  readonly maxWallMs: number;
  readonly requestTimeoutMs: number;
  readonly maxInFlight: number;
}

export interface JobResult extends LoadResult {
  /** The load process and the machine within the measurement window. */
  readonly machine: MachineUse;
}

export type ToLoadProcess = { readonly type: "run"; readonly job: Job } | { readonly type: "stop" };

export type FromLoadProcess =
  | { readonly type: "progress"; readonly progress: LoadProgress }
  | { readonly type: "window"; readonly at: "start" | "end" }
  | { readonly type: "done"; readonly result: JobResult }
  | { readonly type: "failed"; readonly message: string };

export function workloadOf(spec: WorkloadSpec): Workload {
  return spec.kind === "file" ? chatsFile(spec.text, spec.salt) : sharedPrompts(spec);
}

/** What an operator's spec and an engine's own word come to: block size, model, registration. Pure. */

import { KedgeError } from "../../src/errors/index.ts";
import type { AgentAddress, Registration } from "../../src/fleet/types.ts";
import type { WorkerRole } from "../../src/plan/index.ts";
import type { AgentModel } from "../engines/model.ts";
import type { Discovery } from "../engines/vllm/discover.ts";
import type { EngineFigures } from "../engines/vllm/metrics.ts";

/** An engine that runs, and what only its operator knows. */
export interface EngineSpec {
  /** Name of the worker, unique in the fleet. */
  readonly id: string;
  /** Origin, with an optional path before `/v1`. */
  readonly url: string;
  readonly apiKey?: string;
  /** KV events: one address (rank r at port + r) or one per rank; null: none. Absent: as the engine says, if it does. */
  readonly events?: string | readonly string[] | null;
  /** Replay sockets, likewise. */
  readonly replay?: string | readonly string[] | null;
  readonly topic?: string;
  readonly role: WorkerRole;
  /** The agent at whose door gateways of other processes hand in plans for it; absent: they are in this process. */
  readonly agent?: AgentAddress;
  /** Data-parallel ranks; absent: as many as its metrics name. */
  readonly dpSize?: number;
  readonly region: string;
  readonly cluster: string;
  readonly node: string;
  readonly taints?: readonly string[];
  /** Checked against what the engine says. */
  readonly blockSize?: number;
  readonly maxNumBatchedTokens?: number;
  readonly maxNumSeqs?: number;
  /** Canonical id of its model, if several are given and its served names do not tell. */
  readonly model?: string;
}

/** Facts that all ranks of an engine share. */
export interface EngineFacts {
  readonly model: AgentModel;
  readonly blockSize: number;
  readonly dpSize: number;
  /** KV blocks of each rank; null: the engine does not say. */
  readonly blocksPerRank: number | null;
  readonly discovery: Discovery;
}

/** Errors: `engine_mismatch` if configuration and engine disagree, `config_invalid` if something is not known. */
export function factsOf(spec: EngineSpec, models: readonly AgentModel[], discovery: Discovery): EngineFacts {
  const dpSize = spec.dpSize ?? Math.max(1, discovery.figures.ranks.size);
  return {
    model: modelOf(spec, models, discovery),
    blockSize: checkedBlockSize(spec, discovery.figures),
    dpSize,
    blocksPerRank: blocksPerRank(discovery.figures, dpSize),
    discovery,
  };
}

export function registrationOf(
  spec: EngineSpec,
  rank: number,
  { model: { card }, blockSize, dpSize, blocksPerRank: totalBlocks, discovery }: EngineFacts,
  kvEvents: boolean,
): Omit<Registration, "incarnation"> {
  return {
    worker: spec.id,
    rank,
    agent: spec.agent ?? null,
    model: card.model,
    servedNames: [...discovery.servedNames, ...discovery.adapters],
    adapters: discovery.adapters,
    card,
    role: spec.role,
    region: spec.region,
    cluster: spec.cluster,
    node: spec.node,
    engine: engineName(discovery),
    dpSize,
    blockSize,
    totalBlocks,
    maxNumBatchedTokens: spec.maxNumBatchedTokens ?? null,
    maxNumSeqs: spec.maxNumSeqs ?? null,
    maxModelLen: discovery.maxModelLen ?? card.maxModelLen,
    kvEvents,
    saltInEvents: saltInEvents(discovery.version),
    taints: spec.taints ?? [],
  };
}

/** Errors: `engine_mismatch` if configuration and engine disagree, `config_invalid` if neither says. */
function checkedBlockSize(spec: EngineSpec, { blockSize }: EngineFigures): number {
  const given = spec.blockSize;
  if (given !== undefined && blockSize !== null && given !== blockSize) {
    throw new KedgeError(
      "engine_mismatch",
      `Engine ${spec.id} has KV blocks of ${blockSize} tokens, but ${given} are configured. ` +
        `Set the block size to ${blockSize}, or start the engine with --block-size ${given}.`,
      { param: "blockSize" },
    );
  }
  const known = blockSize ?? given;
  if (known !== undefined) return known;
  throw new KedgeError("config_invalid", `Engine ${spec.id} does not say its block size; set it.`, {
    param: "blockSize",
  });
}

/** By the id that the operator gave, else by the engine's names; a model that is the only one is every engine's. */
function modelOf(spec: EngineSpec, models: readonly AgentModel[], { modelIds }: Discovery): AgentModel {
  const wanted = spec.model === undefined ? modelIds : [spec.model];
  const found = models.find(({ card }) => wanted.includes(card.model));
  if (found !== undefined) return found;
  if (models.length === 1 && spec.model === undefined) return models[0]!;
  throw new KedgeError(
    "config_invalid",
    `No model card is given for engine ${spec.id}, which serves ${modelIds.join(", ")}; cards: ` +
      `${models.map(({ card }) => card.model).join(", ") || "none"}. Name its model.`,
    { param: "model" },
  );
}

export function engineName({ version }: Discovery): string {
  return version === null ? "vllm" : `vllm ${version}`;
}

/** The engine's metrics give the blocks of all ranks together. */
export function blocksPerRank({ totalBlocks }: EngineFigures, dpSize: number): number | null {
  return totalBlocks === null ? null : Math.floor(totalBlocks / Math.max(1, dpSize));
}

/** Extra keys, the salt among them, came after 0.15; unknown versions are taken for new ones. */
function saltInEvents(version: string | null): boolean {
  const [, major, minor] = /^(\d+)\.(\d+)/.exec(version ?? "") ?? [];
  return major === undefined || Number(major) > 0 || Number(minor) > 15;
}

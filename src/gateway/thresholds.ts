/** `/busy_threshold` with Dynamo's shapes: busy limits of a model, read and set at run time. */

import type { BusyThresholds } from "../fleet/types.ts";
import type { ViewStore } from "../store/types.ts";
import { isRecord, type JsonRecord } from "../stream/usage.ts";
import type { ServedModel } from "./models.ts";

const FIELDS = {
  active_decode_blocks_threshold: "activeDecodeBlocksThreshold",
  active_prefill_tokens_threshold: "activePrefillTokensThreshold",
  active_prefill_tokens_threshold_frac: "activePrefillTokensThresholdFrac",
} as const;

type Field = keyof typeof FIELDS;
type Limits = Readonly<Record<Field, number | null>>;

export interface ThresholdAnswer {
  readonly status: number;
  readonly body: object;
}

export type ThresholdStore = Pick<ViewStore, "getThresholds" | "setThresholds">;

/** `defaults`: the configured limits, in force where none was set at run time. */
export class BusyThresholdApi {
  private readonly store: ThresholdStore;
  private readonly models: () => Promise<readonly ServedModel[]>;
  private readonly defaults: BusyThresholds;

  constructor(
    store: ThresholdStore,
    models: () => Promise<readonly ServedModel[]>,
    defaults: BusyThresholds,
  ) {
    this.store = store;
    this.models = models;
    this.defaults = defaults;
  }

  /** Limits of every served base model. */
  async list(): Promise<ThresholdAnswer> {
    const models = (await this.models()).filter(({ adapter }) => adapter === null);
    const thresholds = await Promise.all(
      models.map(async ({ name, model }) => ({ model: name, ...(await this.limits(model)) })),
    );
    return { status: 200, body: { thresholds } };
  }

  /** Sets the limits that the body names; names none: reads. 422 unreadable, 400 out of range, 404 setting an unknown model. */
  async update(text: string): Promise<ThresholdAnswer> {
    const request = parse(text);
    if (request === null || typeof request.model !== "string") {
      return failure(422, "The body must be a JSON object with a string member model.");
    }
    const wanted: Partial<Record<Field, number>> = {};
    for (const field of Object.keys(FIELDS) as Field[]) {
      const value = request[field] ?? null;
      if (value === null) continue;
      if (typeof value !== "number") return failure(422, `${field} must be a number.`);
      const problem = outOfRange(field, value);
      if (problem !== null) return failure(400, problem);
      wanted[field] = value;
    }
    return this.apply(request.model, wanted);
  }

  private async apply(name: string, wanted: Partial<Record<Field, number>>): Promise<ThresholdAnswer> {
    const served = await this.find(name);
    const setting = Object.keys(wanted).length > 0;
    if (served === null) {
      if (setting) return failure(404, `The model ${name} is not served.`);
      return { status: 200, body: { model: name, ...toLimits(null) } };
    }
    if (setting) {
      const limits = { ...toLimits(await this.store.getThresholds(served.model)), ...wanted };
      await this.store.setThresholds(served.model, toThresholds(limits));
    }
    return { status: 200, body: { model: name, ...(await this.limits(served.model)) } };
  }

  private async find(name: string): Promise<ServedModel | null> {
    return (await this.models()).find((served) => served.name === name) ?? null;
  }

  private async limits(model: string): Promise<Limits> {
    const set = toLimits(await this.store.getThresholds(model));
    const configured = toLimits(this.defaults);
    const of = (field: Field) => set[field] ?? configured[field];
    return {
      active_decode_blocks_threshold: of("active_decode_blocks_threshold"),
      active_prefill_tokens_threshold: of("active_prefill_tokens_threshold"),
      active_prefill_tokens_threshold_frac: of("active_prefill_tokens_threshold_frac"),
    };
  }
}

function parse(text: string): JsonRecord | null {
  try {
    const value: unknown = JSON.parse(text);
    return isRecord(value) ? value : null;
  } catch {
    return null;
  }
}

function outOfRange(field: Field, value: number): string | null {
  switch (field) {
    case "active_decode_blocks_threshold":
      return value >= 0 && value <= 1 ? null : `${field} must be between 0 and 1.`;
    case "active_prefill_tokens_threshold":
      return Number.isSafeInteger(value) && value >= 0
        ? null
        : `${field} must be a whole number of 0 or more.`;
    case "active_prefill_tokens_threshold_frac":
      return Number.isFinite(value) && value >= 0 ? null : `${field} must be a number of 0 or more.`;
  }
}

function toLimits(thresholds: BusyThresholds | null): Limits {
  return {
    active_decode_blocks_threshold: thresholds?.activeDecodeBlocksThreshold ?? null,
    active_prefill_tokens_threshold: thresholds?.activePrefillTokensThreshold ?? null,
    active_prefill_tokens_threshold_frac: thresholds?.activePrefillTokensThresholdFrac ?? null,
  };
}

function toThresholds(limits: Limits): BusyThresholds {
  return {
    activeDecodeBlocksThreshold: limits.active_decode_blocks_threshold,
    activePrefillTokensThreshold: limits.active_prefill_tokens_threshold,
    activePrefillTokensThresholdFrac: limits.active_prefill_tokens_threshold_frac,
  };
}

const failure = (status: number, error: string): ThresholdAnswer => ({ status, body: { error } });

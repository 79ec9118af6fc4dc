/** The decision room's public face. */

export { DEFAULT_POLICY, effectiveSettings, plainRequest } from "./config.ts";
export { decide } from "./decide.ts";
export {
  type CandidateExplanation,
  type Explanation,
  explain,
  formulaLine,
  logLines,
  selectedLine,
} from "./explain.ts";
export { toFixedEven } from "./format.ts";
export { consistentHash } from "./policies/consistent-hash.ts";
export type { Policy } from "./policies/policy.ts";
export { twoChoices } from "./policies/two-choices.ts";
export * from "./types.ts";

/** The router modes, by the names that settings and overrides use. */

export const ROUTER_MODES = [
  "kv",
  "kv-1.x",
  "round-robin",
  "random",
  "power-of-two",
  "least-loaded",
  "direct",
] as const;

export type RouterMode = (typeof ROUTER_MODES)[number];

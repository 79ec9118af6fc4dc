/** The process's clocks and timers, in the shape that the core takes them. */

import type { Clock } from "../gateway/index.ts";

export const monotonicClock: Clock = {
  now: () => performance.now(),
  wall: () => Date.now(),
  setTimeout: (callback, delayMs) => setTimeout(callback, delayMs),
  clearTimeout: (handle) => clearTimeout(handle as NodeJS.Timeout),
};

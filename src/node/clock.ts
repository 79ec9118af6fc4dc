/** The process's clocks and timers, in the shape that the core takes them. */

import type { Clock } from "../gateway/index.ts";

export const monotonicClock: Clock = {
  now: () => performance.now(),
  wall: () => Date.now(),
  setTimeout: (callback, delayMs) => setTimeout(callback, delayMs),
  clearTimeout: (handle) => clearTimeout(handle as NodeJS.Timeout),
};

/** Zero delays run in this turn of the event loop, not a millisecond later. */
export const promptTimers: Pick<Clock, "setTimeout" | "clearTimeout"> = {
  setTimeout: (callback, delayMs) => (delayMs === 0 ? setImmediate(callback) : setTimeout(callback, delayMs)),
  clearTimeout: (handle) => {
    clearTimeout(handle as NodeJS.Timeout);
    clearImmediate(handle as NodeJS.Immediate);
  },
};

/** A view whose calls are seen through: a request that ends early takes its context along, and with it what others may be waiting for. */

import type { MaybePromise, ViewStore } from "../../src/store/types.ts";

/** `waitUntil`: keeps the context of the request that made the call alive until the work has settled. */
export function keepAlive(store: ViewStore, waitUntil: (work: Promise<unknown>) => void): ViewStore {
  const seen = <T>(work: MaybePromise<T>): MaybePromise<T> => {
    if (work instanceof Promise) waitUntil(work.catch(() => {}));
    return work;
  };
  return {
    get epoch() {
      return store.epoch;
    },
    read: (model, keys) => seen(store.read(model, keys)),
    register: (registration) => seen(store.register(registration)),
    retire: (key) => seen(store.retire(key)),
    apply: (batches) => seen(store.apply(batches)),
    applySnapshot: (snapshot) => seen(store.applySnapshot(snapshot)),
    reserve: (write) => seen(store.reserve(write)),
    release: (key, requestId) => seen(store.release(key, requestId)),
    report: (reports, heartbeat) => seen(store.report(reports, heartbeat)),
    fleet: (maxAgeMs) => seen(store.fleet(maxAgeMs)),
    getThresholds: (model) => seen(store.getThresholds(model)),
    setThresholds: (model, thresholds) => seen(store.setThresholds(model, thresholds)),
    reset: () => seen(store.reset()),
  };
}

/** The indexer: the log folded into the view. */

export type { FeedLag } from "./feeds.ts";
export type { IndexerFigures } from "./figures.ts";
export { Indexer, type IndexerOptions, type IndexerState, type RemoteWrites } from "./indexer.ts";
export type { LeaderState } from "./leadership.ts";
export type { Timers } from "./maybe.ts";
export { IndexerMetrics } from "./metrics.ts";
export {
  type IndexerBus,
  IndexerService,
  type IndexerServiceOptions,
  type IndexerStatus,
  type LeasingStore,
  type ServiceLog,
} from "./service.ts";

/** What an indexer counts of its work since it was made. */

export interface IndexerFigures {
  batchesApplied: number;
  batchesDuplicate: number;
  batchesBehindGap: number;
  /** Of retired incarnations, malformed, or of ranks that nobody registered in time. */
  batchesRefused: number;
  /** Let go because too many were waiting; a snapshot brings what was in them. */
  batchesOverflown: number;
  snapshotsRequested: number;
  snapshotsApplied: number;
  snapshotsFailed: number;
  /** Load reports in the view, those joined with a newer one included. */
  reports: number;
  /** Admitted request ids that were let go while the view could not be written; their reservations run out by themselves. */
  admissionsLost: number;
  /** In the view: from the first on, after a start or an outage of the bus, a rank's silence counts. */
  heartbeats: number;
  registrationsWritten: number;
  /** Repeated by agents and not written, for the view has them. */
  registrationsSkipped: number;
  rollCalls: number;
  /** Writes of several batches, of several load reports, and all others. */
  applyCalls: number;
  reportCalls: number;
  otherCalls: number;
  storeErrors: number;
}

export function newFigures(): IndexerFigures {
  return {
    batchesApplied: 0,
    batchesDuplicate: 0,
    batchesBehindGap: 0,
    batchesRefused: 0,
    batchesOverflown: 0,
    snapshotsRequested: 0,
    snapshotsApplied: 0,
    snapshotsFailed: 0,
    reports: 0,
    admissionsLost: 0,
    heartbeats: 0,
    registrationsWritten: 0,
    registrationsSkipped: 0,
    rollCalls: 0,
    applyCalls: 0,
    reportCalls: 0,
    otherCalls: 0,
    storeErrors: 0,
  };
}

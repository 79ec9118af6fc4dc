/** Load reports on their way out: those of one moment share a message, and while there is no connection the later joins the earlier. */

import type { LoadReport } from "../../fleet/types.ts";

/** Request ids that a waiting report keeps; the reservations of those forgotten end by their own time. */
const MAX_ADMITTED = 4_096;

/** Ranks whose reports are kept while there is no connection. */
const MAX_REPORTS = 1_024;

export class LoadBuffer {
  /** False: it could not be sent. */
  private readonly send: (reports: readonly LoadReport[]) => boolean;
  private readonly reports = new Map<string, LoadReport>();
  private scheduled = false;

  constructor(send: (reports: readonly LoadReport[]) => boolean) {
    this.send = send;
  }

  /** A later report says all of an earlier one but for the requests that it admitted, so these are joined. */
  add(report: LoadReport): void {
    const id = JSON.stringify([report.worker, report.rank, report.incarnation]);
    const earlier = this.reports.get(id);
    const admitted = earlier === undefined ? report.admitted : [...earlier.admitted, ...report.admitted];
    this.reports.delete(id);
    this.reports.set(id, { ...report, admitted: admitted.slice(-MAX_ADMITTED) });
    if (this.reports.size > MAX_REPORTS) this.reports.delete(this.reports.keys().next().value!);
    if (this.scheduled) return;
    this.scheduled = true;
    queueMicrotask(() => {
      this.scheduled = false;
      this.flush();
    });
  }

  flush(): void {
    if (this.reports.size > 0 && this.send([...this.reports.values()])) this.reports.clear();
  }
}

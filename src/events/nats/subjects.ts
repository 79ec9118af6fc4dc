/** Names of the bus on NATS: subjects by place and worker, inboxes, message ids. Permissions are written in these. */

import type { IncarnationKey } from "../../fleet/types.ts";
import { malformed } from "../wire.ts";

/** Where a node is; every agent's subjects begin with it. */
export interface Place {
  readonly region: string;
  readonly cluster: string;
  readonly node: string;
}

export type Channel = "kv" | "reg" | "gone" | "snap";

/** Longer tokens are cut and end in a hash of the whole; NATS wants short subjects. */
const MAX_TOKEN = 96;

/**
 * Free text as one token of a subject: `[A-Za-z0-9_-]` stand for themselves, every other byte of its UTF-8 is `=` and two
 * hex digits, and the empty text is `=`. Injective, save for texts of more than 96 coded characters, which a 64-bit hash tells apart.
 */
export function token(text: string): string {
  let coded = "";
  for (const byte of new TextEncoder().encode(text)) {
    const char = String.fromCharCode(byte);
    coded += /[A-Za-z0-9_-]/.test(char) ? char : `=${byte.toString(16).toUpperCase().padStart(2, "0")}`;
  }
  if (coded === "") return "=";
  if (coded.length <= MAX_TOKEN) return coded;
  // No coded text has `==`, so that a cut one is never another's.
  return `${coded.slice(0, MAX_TOKEN - 18)}==${fnv1a64(coded)}`;
}

function fnv1a64(text: string): string {
  let hash = 0xcbf29ce484222325n;
  for (let i = 0; i < text.length; i += 1) {
    hash = ((hash ^ BigInt(text.charCodeAt(i))) * 0x100000001b3n) & 0xffff_ffff_ffff_ffffn;
  }
  return hash.toString(16).padStart(16, "0");
}

/** Subjects of one prefix. */
export class Subjects {
  readonly prefix: string;

  constructor(prefix: string) {
    this.prefix = prefix;
  }

  /** `<prefix>.<channel>.<region>.<cluster>.<node>.<worker>`. */
  worker(channel: Channel, place: Place, worker: string): string {
    return `${this.prefix}.${channel}.${path(place)}.${token(worker)}`;
  }

  /** All workers of a node. */
  node(channel: Channel, place: Place): string {
    return `${this.prefix}.${channel}.${path(place)}.*`;
  }

  /** All of a channel, everywhere. */
  all(channel: Channel | "load"): string {
    return `${this.prefix}.${channel}.>`;
  }

  /** Load reports of all workers of a node share messages. */
  load(place: Place): string {
    return `${this.prefix}.load.${path(place)}`;
  }

  /** Every agent serves it: for workers whose place is not known. */
  get anySnapshot(): string {
    return `${this.prefix}.snap`;
  }

  get roll(): string {
    return `${this.prefix}.roll`;
  }

  beat(region: string, indexer: string): string {
    return `${this.prefix}.beat.${token(region)}.${token(indexer)}`;
  }

  beats(region: string): string {
    return `${this.prefix}.beat.${token(region)}.*`;
  }

  /** Answers come to subjects below this; nobody else may listen there. */
  agentInbox(place: Place): string {
    return `_INBOX.${this.prefix}.agent.${path(place)}`;
  }

  indexerInbox(region: string, indexer: string): string {
    return `_INBOX.${this.prefix}.indexer.${token(region)}.${token(indexer)}`;
  }
}

/** The tokens `<region>.<cluster>.<node>.<worker>` of a worker's subject. */
export function placeOf(subject: string): string {
  return subject.split(".").slice(2).join(".");
}

/** What a server lets a user say of one worker must not be said of another in the message's inside. Errors: `invalid_request`. */
export function ofItsSubject<T extends IncarnationKey>(message: T, subject: string): T {
  if (subject.endsWith(`.${token(message.worker)}`)) return message;
  throw malformed(`it is of worker ${message.worker} and came by ${subject}`);
}

/** What makes a batch the same batch when it is sent again. */
export function messageId(key: IncarnationKey, sequence: number): string {
  return `${token(key.worker)}.${key.rank}.${token(key.incarnation)}:${sequence}`;
}

/** The durable consumer of a region's indexer. */
export function consumerName(region: string): string {
  return `indexer-${token(region)}`;
}

function path({ region, cluster, node }: Place): string {
  return `${token(region)}.${token(cluster)}.${token(node)}`;
}

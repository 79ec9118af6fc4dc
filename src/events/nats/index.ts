/** The event bus over NATS, for hosts. */

export { connectNatsBus, NatsBus, type NatsBusOptions, type NatsStatus, type StreamLimits } from "./bus.ts";
export type { NatsCredentials } from "./connection.ts";
export { type NatsHost, natsOptions } from "./options.ts";
export type { Timers } from "./outbox.ts";
export type { Place } from "./subjects.ts";

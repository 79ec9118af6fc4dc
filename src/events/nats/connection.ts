/** The one place that knows the NATS client library: one connection's life, from its handshake to its end. It never reconnects by itself. */

import {
  AckPolicy,
  type Authenticator,
  type ConnectionOptions,
  type ConsumerMessages,
  connect,
  createInbox,
  credsAuthenticator,
  DeliverPolicy,
  DiscardPolicy,
  type JsMsg,
  type Msg,
  type NatsConnection,
  NatsError,
  nanos,
  nkeyAuthenticator,
  RetentionPolicy,
  StorageType,
  type Subscription,
  tokenAuthenticator,
  usernamePasswordAuthenticator,
} from "nats.ws";
import { KedgeError } from "../../errors/index.ts";

/** How this side proves who it is; the first that is set counts. */
export interface NatsCredentials {
  /** Contents of a credentials file (JWT and seed). */
  readonly creds?: string | null;
  /** Seed of an nkey, `SU…`. */
  readonly nkey?: string | null;
  readonly token?: string | null;
  readonly user?: string | null;
  readonly password?: string | null;
}

export interface LinkOptions {
  /** `ws://…` or `wss://…`. */
  readonly server: string;
  readonly credentials: NatsCredentials;
  /** Shown in the server's list of connections. */
  readonly name: string;
  readonly inboxPrefix: string;
  readonly connectTimeoutMs: number;
  /** A server that leaves three pings in a row unanswered is taken for dead. */
  readonly pingMs: number;
  /** Opens the WebSocket another way, e.g. by a binding's fetch in a Worker. */
  readonly openSocket?: (url: string) => Promise<WebSocket>;
  /** What the server refused, e.g. a subject that this user may not publish to. */
  readonly onRefusal: (error: KedgeError) => void;
}

export interface LinkMessage {
  readonly subject: string;
  readonly data: Uint8Array;
  /** Where an answer goes; empty: none is wanted. */
  readonly reply: string;
}

/** A message of the log, to be acknowledged. */
export interface LogMessage {
  readonly subject: string;
  readonly data: Uint8Array;
  /** Its place in the log. */
  readonly sequence: number;
  readonly redelivered: boolean;
  /** Messages of the log that this consumer has yet to get. */
  readonly pending: number;
  ack(): void;
  /** Again, at once, to whoever consumes. */
  nak(): void;
  /** Never again. */
  term(): void;
}

export interface StreamSettings {
  readonly name: string;
  readonly subjects: readonly string[];
  readonly maxAgeMs: number;
  readonly maxBytes: number;
  /** A batch that is sent again within this time is stored once. */
  readonly duplicateWindowMs: number;
  readonly replicas: number;
}

export interface ConsumerSettings {
  readonly stream: string;
  readonly durable: string;
  /** What is not acknowledged by then is delivered again. */
  readonly ackWaitMs: number;
  readonly maxAckPending: number;
}

/** What became of a message that the log did not take. */
export class NotLogged extends Error {
  /** True: sending it again cannot help. */
  readonly forGood: boolean;

  constructor(cause: unknown, forGood: boolean) {
    super(reasonOf(cause), { cause });
    this.name = "NotLogged";
    this.forGood = forGood;
  }
}

/** Most messages asked for ahead of what is handled. */
const PULL_MESSAGES = 256;
const PULL_EXPIRES_MS = 10_000;
const PULL_HEARTBEAT_MS = 2_500;
const REQUEST_TIMEOUT_MS = 5_000;

/** Resolves when the server has accepted this client. Errors: `config_invalid` for refused credentials, else `view_unavailable`. */
export async function openLink(options: LinkOptions): Promise<Link> {
  let socket: WebSocket | null = null;
  const open = options.openSocket ?? (async (url: string) => new WebSocket(url));
  try {
    // The library's types leave its `wsFactory` out.
    const settings: ConnectionOptions & {
      wsFactory: () => Promise<{ socket: WebSocket; encrypted: boolean }>;
    } = {
      servers: options.server,
      name: options.name,
      authenticator: authenticator(options.credentials),
      inboxPrefix: options.inboxPrefix,
      timeout: options.connectTimeoutMs,
      pingInterval: options.pingMs,
      maxPingOut: 2,
      reconnect: false,
      ignoreClusterUpdates: true,
      noAsyncTraces: true,
      wsFactory: async () => {
        socket = await open(options.server);
        return { socket, encrypted: options.server.startsWith("wss:") };
      },
    };
    const connection = await connect(settings);
    return new Link(connection, socket, options);
  } catch (thrown) {
    // The library leaves a socket that has not finished its handshake open.
    closeSocket(socket);
    const isRefused = thrown instanceof NatsError && thrown.isAuthError();
    throw isRefused
      ? new KedgeError(
          "config_invalid",
          `NATS at ${options.server} refused the credentials: ${reasonOf(thrown)}.`,
          {
            cause: thrown,
            param: "nats",
          },
        )
      : new KedgeError(
          "view_unavailable",
          `NATS at ${options.server} is out of reach: ${reasonOf(thrown)}.`,
          {
            cause: thrown,
          },
        );
  }
}

export class Link {
  readonly server: string;
  /** Resolves with the reason when the connection is lost or closed. */
  readonly ended: Promise<string>;
  private readonly endings = new Set<() => void>();
  private readonly connection: NatsConnection;
  private readonly socket: WebSocket | null;
  private readonly inboxPrefix: string;
  private readonly onRefusal: LinkOptions["onRefusal"];

  constructor(connection: NatsConnection, socket: WebSocket | null, options: LinkOptions) {
    this.connection = connection;
    this.socket = socket;
    this.server = options.server;
    this.inboxPrefix = options.inboxPrefix;
    this.onRefusal = options.onRefusal;
    this.ended = this.watch();
  }

  /** Calls when it ends, unless the returned function was called before. For short waits: `ended` would hold them all. */
  onEnd(callback: () => void): () => void {
    this.endings.add(callback);
    return () => this.endings.delete(callback);
  }

  /** Largest message in bytes, headers included. */
  get maxPayload(): number {
    return this.connection.info?.max_payload ?? 1_048_576;
  }

  /** False: it was not sent, the connection is ending or the message is too large. */
  publish(subject: string, data: Uint8Array, reply?: string): boolean {
    try {
      this.connection.publish(subject, data, reply === undefined ? undefined : { reply });
      return true;
    } catch {
      return false;
    }
  }

  /** `handler` must not throw: it runs inside the library's parser. */
  subscribe(subject: string, handler: (message: LinkMessage) => void): () => void {
    try {
      const subscription = this.connection.subscribe(subject, {
        callback: (error, message) => {
          if (error === null) handler(linkMessage(message));
        },
      });
      return () => subscription.unsubscribe();
    } catch {
      // It is ending; the next link subscribes anew.
      return () => undefined;
    }
  }

  /** Asks and hears all answers until the returned function is called; null: nobody serves the subject. */
  ask(subject: string, data: Uint8Array, onAnswer: (data: Uint8Array | null) => void): () => void {
    const inbox = createInbox(this.inboxPrefix);
    const subscription = this.connection.subscribe(inbox, {
      callback: (error, message) => {
        if (error === null) onAnswer(message.headers?.code === 503 ? null : message.data);
      },
    });
    this.publish(subject, data, inbox);
    return () => subscription.unsubscribe();
  }

  /** Resolves when the log has stored the message, or had it already. Errors: NotLogged. */
  async log(subject: string, data: Uint8Array, messageId: string): Promise<void> {
    try {
      await this.connection
        .jetstream({ timeout: REQUEST_TIMEOUT_MS })
        .publish(subject, data, { msgID: messageId });
    } catch (thrown) {
      const code = thrown instanceof NatsError ? (thrown.api_error?.code ?? 0) : 0;
      const isTooLarge = thrown instanceof NatsError && thrown.code === "MAX_PAYLOAD_EXCEEDED";
      throw new NotLogged(thrown, isTooLarge || (code >= 400 && code < 500));
    }
  }

  /** Creates the stream if there is none. One that exists stays as its operator set it. */
  async ensureStream(settings: StreamSettings): Promise<void> {
    const manager = await this.connection.jetstreamManager({ timeout: REQUEST_TIMEOUT_MS, checkAPI: false });
    try {
      await manager.streams.info(settings.name);
      return;
    } catch (thrown) {
      if (!isNotFound(thrown)) throw thrown;
    }
    await manager.streams.add({
      name: settings.name,
      subjects: [...settings.subjects],
      retention: RetentionPolicy.Limits,
      storage: StorageType.File,
      discard: DiscardPolicy.Old,
      max_age: nanos(settings.maxAgeMs),
      max_bytes: settings.maxBytes,
      duplicate_window: nanos(settings.duplicateWindowMs),
      num_replicas: settings.replicas,
      // Older servers (2.9) let whoever may publish to a stream purge it, by the subject to which the acknowledgement goes.
      deny_purge: true,
    });
  }

  /**
   * Hears the log through a durable consumer, which is made if there is none, until `stop`; `lost` resolves if the consumer goes.
   * `handler` must not throw.
   */
  async consume(
    settings: ConsumerSettings,
    handler: (message: LogMessage) => void,
  ): Promise<{ stop(): void; readonly lost: Promise<void> }> {
    const options = { timeout: REQUEST_TIMEOUT_MS, checkAPI: false };
    const manager = await this.connection.jetstreamManager(options);
    const { stream, durable } = settings;
    const wanted = { ack_wait: nanos(settings.ackWaitMs), max_ack_pending: settings.maxAckPending };
    try {
      const { config } = await manager.consumers.info(stream, durable);
      const isAsWanted =
        config.ack_wait === wanted.ack_wait && config.max_ack_pending === wanted.max_ack_pending;
      if (!isAsWanted) await manager.consumers.update(stream, durable, wanted);
    } catch (thrown) {
      if (!isNotFound(thrown)) throw thrown;
      await manager.consumers.add(stream, {
        durable_name: durable,
        ack_policy: AckPolicy.Explicit,
        deliver_policy: DeliverPolicy.All,
        ...wanted,
      });
    }
    const consumer = await this.connection.jetstream(options).consumers.get(stream, durable);
    const messages: ConsumerMessages = await consumer.consume({
      max_messages: PULL_MESSAGES,
      expires: PULL_EXPIRES_MS,
      idle_heartbeat: PULL_HEARTBEAT_MS,
      abort_on_missing_resource: true,
      callback: (message) => handler(logMessage(message)),
    });
    return {
      stop: () => stopGently(messages),
      lost: messages.closed().then(
        () => undefined,
        () => undefined,
      ),
    };
  }

  /** Resolves when the server has got all that was published before. Rejects if the connection ends first. */
  flush(): Promise<void> {
    return new Promise((resolve, reject) => {
      // The library forgets those who wait when it closes.
      const forget = this.onEnd(() => reject(new Error("the connection has ended")));
      this.connection.flush().then(resolve, reject).finally(forget);
    });
  }

  close(): void {
    this.connection.close().catch(() => undefined);
    closeSocket(this.socket);
  }

  private async watch(): Promise<string> {
    const why = await Promise.race([
      this.connection.closed().then((error) => (error ? reasonOf(error) : "closed")),
      this.watchStatus(),
    ]);
    this.close();
    for (const callback of [...this.endings]) callback();
    return why;
  }

  private async watchStatus(): Promise<string> {
    for await (const status of this.connection.status()) {
      if (status.type === "staleConnection") return "the server does not answer pings";
      if (status.type === "disconnect") return "the connection was lost";
      if (status.type !== "error") continue;
      const { operation, subject } = status.permissionContext ?? {};
      const what =
        subject === undefined ? `${status.data}` : `this user has no ${operation} permission for ${subject}`;
      this.onRefusal(new KedgeError("config_invalid", `NATS refused: ${what}.`, { param: "nats" }));
    }
    return "closed";
  }
}

/**
 * Ends the subscription, yet hears what the server had sent before, so that it can be handed back: the library's own `stop` lets it lie
 * until the acknowledgement time is over, and its `close()` may not settle once it is awaited.
 */
function stopGently(messages: ConsumerMessages): void {
  const { sub } = messages as unknown as { readonly sub?: Subscription };
  if (sub === undefined || sub.isClosed() || sub.isDraining()) messages.stop();
  else sub.drain().catch(() => messages.stop());
}

function authenticator(credentials: NatsCredentials): Authenticator[] {
  const encoder = new TextEncoder();
  const { creds, nkey, token, user, password } = credentials;
  if (creds) return [credsAuthenticator(encoder.encode(creds))];
  if (nkey) return [nkeyAuthenticator(encoder.encode(nkey))];
  if (token) return [tokenAuthenticator(token)];
  if (user) return [usernamePasswordAuthenticator(user, password ?? undefined)];
  return [];
}

function linkMessage(message: Msg): LinkMessage {
  return { subject: message.subject, data: message.data, reply: message.reply ?? "" };
}

function logMessage(message: JsMsg): LogMessage {
  const guarded = (act: () => void) => () => {
    try {
      act();
    } catch {
      // The connection has ended: the message is delivered again.
    }
  };
  return {
    subject: message.subject,
    data: message.data,
    sequence: message.seq,
    redelivered: message.redelivered,
    pending: message.info.pending,
    ack: guarded(() => message.ack()),
    nak: guarded(() => message.nak()),
    term: guarded(() => message.term()),
  };
}

function isNotFound(thrown: unknown): boolean {
  return thrown instanceof NatsError && thrown.api_error?.code === 404;
}

function closeSocket(socket: WebSocket | null): void {
  try {
    socket?.close();
  } catch {
    // It is closed.
  }
}

function reasonOf(thrown: unknown): string {
  if (thrown instanceof NatsError && thrown.code === "503")
    return "nobody serves it (is JetStream on, is the stream there?)";
  const message = thrown instanceof Error ? thrown.message : String(thrown);
  return message === "" || message === "undefined" ? "no connection" : message;
}

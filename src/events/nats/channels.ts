/** Subscriptions that outlive connections: each subject's handlers, attached to whatever connection there is. */

import type { Unsubscribe } from "../bus.ts";
import type { Link, LinkMessage } from "./connection.ts";

export interface ChannelsOptions {
  /** A message was none of its channel. */
  readonly onUnreadable: (thrown: unknown, subject: string) => void;
  readonly onHandlerError: (thrown: unknown, subject: string) => void;
}

export class Channels {
  private readonly options: ChannelsOptions;
  private readonly channels = new Map<string, Channel>();
  private link: Link | null = null;

  constructor(options: ChannelsOptions) {
    this.options = options;
  }

  /** What `read` throws was no message of this channel; what `handler` throws is its own and stops no other. */
  hear<T>(subject: string, read: (message: LinkMessage) => T, handler: (value: T) => void): Unsubscribe {
    const channel = this.channels.get(subject) ?? new Channel(subject);
    if (!this.channels.has(subject)) {
      this.channels.set(subject, channel);
      channel.attach(this.link);
    }
    const own = (message: LinkMessage) => this.handle(subject, message, read, handler);
    channel.handlers.add(own);
    return () => {
      channel.handlers.delete(own);
      if (channel.handlers.size > 0 || this.channels.get(subject) !== channel) return;
      channel.detach();
      this.channels.delete(subject);
    };
  }

  attach(link: Link): void {
    this.link = link;
    for (const channel of this.channels.values()) channel.attach(link);
  }

  detach(): void {
    this.link = null;
    for (const channel of this.channels.values()) channel.detach();
  }

  private handle<T>(
    subject: string,
    message: LinkMessage,
    read: (message: LinkMessage) => T,
    handler: (value: T) => void,
  ): void {
    let value: T;
    try {
      value = read(message);
    } catch (thrown) {
      this.options.onUnreadable(thrown, subject);
      return;
    }
    try {
      handler(value);
    } catch (thrown) {
      this.options.onHandlerError(thrown, subject);
    }
  }
}

class Channel {
  readonly handlers = new Set<(message: LinkMessage) => void>();
  private readonly subject: string;
  private leave: Unsubscribe | null = null;

  constructor(subject: string) {
    this.subject = subject;
  }

  attach(link: Link | null): void {
    if (link === null) return;
    this.leave = link.subscribe(this.subject, (message) => {
      for (const handler of [...this.handlers]) handler(message);
    });
  }

  detach(): void {
    this.leave?.();
    this.leave = null;
  }
}

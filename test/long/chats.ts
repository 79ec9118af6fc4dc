/** Chats as people have them, sent at a steady rate: shared system prompts, turns that carry answers back, streams and whole answers, some left early. */

const WORDS =
  "amber basket candle distant ember forest garden hollow island jacket kettle lantern meadow needle orchard pepper quiet river silver thunder umbrella valley window yellow zephyr".split(
    " ",
  );

export interface Message {
  readonly role: "system" | "user" | "assistant";
  readonly content: string;
}

export interface ChatLoadOptions {
  /** Gateways, each asked as often. */
  readonly urls: readonly string[];
  readonly headers: Readonly<Record<string, string>>;
  readonly model: string;
  readonly maxTokens: number;
  readonly random: () => number;
}

/** How a request ended. */
export interface Outcome {
  readonly kind: "answered" | "left" | "broken in band" | "wrong";
  /** 0: no answer at all. */
  readonly status: number;
  /** What was wrong. */
  readonly words: string;
  readonly stream: boolean;
  readonly rung: string;
  /** `worker/rank`. */
  readonly worker: string;
  readonly sentAtMs: number;
  readonly endedAtMs: number;
  /** Tokens of the prompt, and those that the engine had cached; whole answers only. */
  readonly promptTokens: number;
  readonly cachedTokens: number;
}

const FAMILIES = 6;
const SYSTEM_BYTES = 700;
const TURNS_MOST = 6;
const CONVERSATIONS = 48;
const STREAMED = 0.5;
/** Of the streams: left after the first of it, or before. */
const LEFT_AFTER = 0.04;
const LEFT_BEFORE = 0.02;
/** With so many under way something hangs, and more would only bury it. */
const UNDER_WAY_MOST = 800;
/** A request that hangs is as bad as one that fails. */
const PATIENCE_MS = 30_000;

interface Conversation {
  messages: readonly Message[];
  turnsLeft: number;
  busy: boolean;
  /** The last prompt that was answered: the next one begins with it. */
  answered: readonly Message[] | null;
}

interface Begun {
  readonly stream: boolean;
  readonly sentAtMs: number;
}

interface Told {
  readonly kind: Outcome["kind"];
  readonly words: string;
  /** The assistant's turn. */
  readonly reply: string;
  readonly promptTokens: number;
  readonly cachedTokens: number;
}

export class ChatLoad {
  /** Prompts that were sent, without those that others begin with. */
  readonly prompts = new Set<readonly Message[]>();
  /** Arrivals that were let go because too many requests were under way. */
  heldBack = 0;
  underWay = 0;
  private readonly options: ChatLoadOptions;
  private readonly onOutcome: (outcome: Outcome) => void;
  private readonly systems: readonly string[];
  private readonly conversations: Conversation[] = [];
  private readonly requests = new Set<Promise<void>>();
  private turn = 0;

  constructor(options: ChatLoadOptions, onOutcome: (outcome: Outcome) => void) {
    this.options = options;
    this.onOutcome = onOutcome;
    this.systems = Array.from({ length: FAMILIES }, (_, i) => `Rules ${i}: ${this.text(SYSTEM_BYTES)}`);
  }

  /** Sends for so long, `perSecond` being the mean of a Poisson process: requests do not wait for one another. Resolves when the last has ended. */
  async run(durationMs: number, perSecond: number): Promise<void> {
    const { random } = this.options;
    const endMs = performance.now() + durationMs;
    let dueMs = performance.now();
    while (dueMs < endMs) {
      dueMs += (-Math.log(1 - random()) * 1_000) / perSecond;
      const waitMs = dueMs - performance.now();
      if (waitMs > 1) await new Promise((resolve) => setTimeout(resolve, waitMs));
      if (this.underWay >= UNDER_WAY_MOST) this.heldBack += 1;
      else this.send();
    }
    await Promise.all(this.requests);
  }

  private send(): void {
    const request = this.converse(this.pick());
    this.requests.add(request);
    void request.finally(() => this.requests.delete(request));
  }

  private pick(): Conversation {
    const { random } = this.options;
    const idle = this.conversations.filter(({ busy }) => !busy);
    if (this.conversations.length < CONVERSATIONS || idle.length === 0) {
      const content = this.systems[Math.floor(random() * FAMILIES)]!;
      const turnsLeft = 1 + Math.floor(random() * TURNS_MOST);
      const messages: Message[] = [{ role: "system", content }];
      const fresh: Conversation = { messages, turnsLeft, busy: false, answered: null };
      this.conversations.push(fresh);
      return fresh;
    }
    return idle[Math.floor(random() * idle.length)]!;
  }

  /** One turn. After one without a whole answer the chat goes on as if it had not been. */
  private async converse(conversation: Conversation): Promise<void> {
    conversation.busy = true;
    this.underWay += 1;
    const content = this.text(60 + Math.floor(this.options.random() * 140));
    const messages: Message[] = [...conversation.messages, { role: "user", content }];
    if (conversation.answered !== null) this.prompts.delete(conversation.answered);
    this.prompts.add(messages);
    const reply = await this.ask(messages);
    if (reply !== "") {
      conversation.messages = [...messages, { role: "assistant", content: reply }];
      conversation.answered = messages;
    }
    this.underWay -= 1;
    conversation.busy = false;
    conversation.turnsLeft -= 1;
    if (conversation.turnsLeft === 0) this.conversations.splice(this.conversations.indexOf(conversation), 1);
  }

  /** The reply, empty if there is none. */
  private async ask(messages: readonly Message[]): Promise<string> {
    const { urls, headers, model, maxTokens, random } = this.options;
    const begun: Begun = { stream: random() < STREAMED, sentAtMs: performance.now() };
    const leaving = random();
    const leavesBefore = begun.stream && leaving < LEFT_BEFORE;
    const leavesAfter = begun.stream && !leavesBefore && leaving < LEFT_BEFORE + LEFT_AFTER;
    const client = new AbortController();
    const patience = setTimeout(() => client.abort(), PATIENCE_MS);
    if (leavesBefore) setImmediate(() => client.abort());
    let response: Response | null = null;
    try {
      response = await fetch(`${urls[this.turn++ % urls.length]}/v1/chat/completions`, {
        method: "POST",
        headers: { "content-type": "application/json", ...headers },
        body: JSON.stringify({
          model,
          messages,
          max_tokens: maxTokens,
          ignore_eos: true,
          stream: begun.stream,
        }),
        signal: client.signal,
      });
      const told = leavesAfter
        ? await leave(response, client)
        : judge(response, await response.text(), begun.stream);
      this.tell(begun, response, told);
      return told.reply;
    } catch (thrown) {
      const kind = leavesBefore ? "left" : "wrong";
      this.tell(begun, response, { ...NOTHING, kind, words: String(thrown) });
      return "";
    } finally {
      clearTimeout(patience);
    }
  }

  private tell({ stream, sentAtMs }: Begun, response: Response | null, { reply: _, ...told }: Told): void {
    this.onOutcome({
      ...told,
      status: response?.status ?? 0,
      stream,
      rung: response?.headers.get("x-kedge-rung") ?? "none",
      worker: response?.headers.get("x-kedge-worker") ?? "none",
      sentAtMs,
      endedAtMs: performance.now(),
    });
  }

  private text(bytes: number): string {
    const { random } = this.options;
    let text = "";
    while (text.length < bytes) text += `${WORDS[Math.floor(random() * WORDS.length)]} `;
    return text.slice(0, bytes);
  }
}

const NOTHING = { words: "", reply: "", promptTokens: 0, cachedTokens: 0 };

/** Reads the first of a stream and goes. */
async function leave(response: Response, client: AbortController): Promise<Told> {
  if (response.status !== 200) return judge(response, await response.text(), true);
  await response.body!.getReader().read();
  client.abort();
  return { ...NOTHING, kind: "left" };
}

interface Reply {
  readonly choices?: readonly {
    readonly message?: { readonly content?: string };
    readonly delta?: { readonly content?: string };
  }[];
  readonly usage?: {
    readonly prompt_tokens: number;
    readonly prompt_tokens_details?: { readonly cached_tokens: number };
  };
  readonly error?: { readonly code?: string; readonly message?: string };
}

function judge(response: Response, text: string, stream: boolean): Told {
  if (response.status !== 200) return { ...NOTHING, kind: "wrong", words: text.slice(0, 2_000) };
  if (!stream) {
    const { choices, usage } = JSON.parse(text) as Reply;
    const reply = choices?.[0]?.message?.content ?? "";
    if (reply === "" || usage === undefined)
      return { ...NOTHING, kind: "wrong", words: text.slice(0, 2_000) };
    const cachedTokens = usage.prompt_tokens_details?.cached_tokens ?? 0;
    return { kind: "answered", words: "", reply, promptTokens: usage.prompt_tokens, cachedTokens };
  }
  const events = text.split("\n\n").filter((event) => event.startsWith("data: {"));
  const parts = events.map((event) => JSON.parse(event.slice(6)) as Reply);
  const failure = parts.find(({ error }) => error !== undefined)?.error;
  if (failure !== undefined) {
    return { ...NOTHING, kind: "broken in band", words: `${failure.code}: ${failure.message}` };
  }
  const reply = parts.map(({ choices }) => choices?.[0]?.delta?.content ?? "").join("");
  const isWhole = text.trimEnd().endsWith("data: [DONE]") && reply !== "";
  return isWhole
    ? { ...NOTHING, kind: "answered", reply }
    : { ...NOTHING, kind: "wrong", words: `not whole: ${text.slice(-300)}` };
}

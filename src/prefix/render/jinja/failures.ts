/** The two ways a template can fail, kept apart because only one of them is the engine's answer too. */

/** The template uses what this interpreter lacks: the engine may well render it, so its prompts are merely unkeyed. */
export class UnsupportedTemplate extends Error {
  constructor(what: string, cause?: unknown) {
    super(`unsupported chat template: ${what}`, { cause });
    this.name = "UnsupportedTemplate";
  }
}

/** The template itself refused (`raise_exception`), or Python would have raised: the engine answers 400. */
export class TemplateFailure extends Error {
  /** The template's own message, meant for the client. */
  readonly raised: boolean;

  constructor(message: string, raised = false) {
    super(message);
    this.name = "TemplateFailure";
    this.raised = raised;
  }
}

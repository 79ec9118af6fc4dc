/** Bodies held at once never exceed the budget, and what ends gives its share back, once. */

import { expect, it } from "vitest";
import { KedgeError } from "../errors/index.ts";
import { BodyBudget } from "./body-budget.ts";

it("refuses what would exceed the budget, to the byte, with a code and a time to retry", () => {
  const budget = new BodyBudget(100);
  budget.take(60);
  budget.take(40);
  const refused = (): unknown => {
    try {
      return budget.take(1);
    } catch (error) {
      return error;
    }
  };
  expect(refused()).toBeInstanceOf(KedgeError);
  expect(refused()).toMatchObject({ code: "overloaded", retryAfterSeconds: 1 });
});

it("a body that is shorter than announced frees the rest; releasing twice frees once", () => {
  const budget = new BodyBudget(100);
  const first = budget.take(90);
  first.resize(30);
  const second = budget.take(70);
  second.release();
  second.release();
  budget.take(70);
  expect(() => budget.take(1)).toThrow("retry shortly");
});

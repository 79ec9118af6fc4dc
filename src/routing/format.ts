/** Decimal numbers as Rust prints them. */

/**
 * `value` with `digits` decimals, exact halves to even: 5.8125 → 5.812 (toFixed gives 5.813). A double is an exact half
 * at d decimals only if it is an odd multiple of 2^−(d+1), so toFixed, exact otherwise, is right for all the rest.
 */
export function toFixedEven(value: number, digits: number): string {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  const halves = Math.abs(value) * 2 ** (digits + 1);
  const unit = 10 ** digits;
  if (halves % 2 !== 1 || halves * 5 ** digits > Number.MAX_SAFE_INTEGER) return fixed(value, digits);
  const below = Math.floor(Math.abs(value) * unit);
  const rounded = below % 2 === 0 ? below : below + 1;
  return fixed((Math.sign(value) * rounded) / unit, digits);
}

/** toFixed turns to exponents at 1e21, where every double is an integer. */
function fixed(value: number, digits: number): string {
  if (Math.abs(value) < 1e21) return value.toFixed(digits);
  return `${BigInt(value)}.${"0".repeat(digits)}`;
}

// Numbers for people: three digits, thousands apart, powers of ten written out.

const GROUPED = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹";

export function integer(value) {
  return GROUPED.format(value);
}

export function decimal(value, digits = 3) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return power(value, digits);
  if (size >= 1000) return minus(GROUPED.format(value));
  return minus(String(Number(value.toPrecision(digits))));
}

function power(value, digits) {
  const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
  const digitsUp = [...String(Math.abs(Number(exponent)))].map((digit) => SUPERSCRIPTS[Number(digit)]).join("");
  return `${minus(String(Number(mantissa)))}×10${Number(exponent) < 0 ? "⁻" : ""}${digitsUp}`;
}

function minus(text) {
  return text.replace("-", "−");
}

export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  const value = share * 100;
  if (value > 0 && value < 0.1) return "< 0.1 %";
  if (value < 100 && value > 99.9) return "> 99.9 %";
  return `${Number(value.toFixed(value < 10 || value > 90 ? 1 : 0))} %`;
}

// Tokens as they can be seen: line breaks would tear a text apart, and spaces at the ends of a token count.
export function visible(text) {
  return text
    .replace(/\n|<0x0A>/g, "⏎")
    .replace(/\t|<0x09>/g, "⇥")
    .replace(/^ +| +$|(?<=“) +| +(?=”)/g, (spaces) => "␣".repeat(spaces.length));
}

export function plural(count, singular, pluralForm = `${singular}s`) {
  return `${integer(count)} ${count === 1 ? singular : pluralForm}`;
}

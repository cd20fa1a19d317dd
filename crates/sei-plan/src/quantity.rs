//! Kubernetes resource quantities: `500m`, `1.5Gi`, `1e3`.
//!
//! `k8s-openapi` keeps a quantity as the text it was given, but the API server stores its own form
//! of it. Comparing texts would therefore report drift where there is none (`1024Mi` is stored as
//! `1Gi`), so every comparison uses [`Quantity`], which is exact and never uses floats.

use std::cmp::Ordering;
use std::fmt;

#[cfg(test)]
mod tests;

/// Nano is the finest step Kubernetes keeps; anything finer is rounded up to it.
const NANO_DIGITS: i64 = 9;
const NANOS_PER_UNIT: i128 = 1_000_000_000;

/// Kubernetes promises no quantity above this in magnitude: it caps, we refuse. A silent cap would
/// make the stored value differ from the rendered one for ever.
const MAX_NANOS: u128 = i64::MAX as u128 * 1_000_000_000;

/// A parsed quantity. Equality and order are those of the value, not of the text.
#[derive(Debug, Clone, Copy)]
pub struct Quantity {
    nanos: i128,
    family: Family,
}

/// Why a text is not a quantity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuantityError {
    #[error("a quantity is empty; write a number such as `500m` or `2Gi`")]
    Empty,
    #[error("`{value}` is not a quantity; write a decimal number, such as `0.5`, `500m` or `2Gi`")]
    NotANumber { value: String },
    #[error(
        "`{value}` has the unknown suffix `{suffix}`; use one of n u m k M G T P E, \
         Ki Mi Gi Ti Pi Ei, or an exponent such as `e3`"
    )]
    UnknownSuffix { value: String, suffix: String },
    #[error("`{value}` is too large; a quantity is at most 2^63-1 (about 9.2E or 7.9Ei)")]
    TooLarge { value: String },
}

/// The notation that the API server keeps: `1Gi` stays binary, `1e3` stays an exponent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Family {
    Binary,
    Decimal,
    Exponent,
}

const DECIMAL_SUFFIXES: [(&str, i64); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

const BINARY_SUFFIXES: [(&str, u32); 6] =
    [("Ki", 10), ("Mi", 20), ("Gi", 30), ("Ti", 40), ("Pi", 50), ("Ei", 60)];

impl Quantity {
    pub fn parse(text: &str) -> Result<Self, QuantityError> {
        if text.is_empty() {
            return Err(QuantityError::Empty);
        }
        let (negative, unsigned) = split_sign(text);
        let number_length =
            unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at(number_length);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.len() + fraction.len() == 0 || fraction.contains('.') {
            return Err(QuantityError::NotANumber { value: shown(text) });
        }
        let scale = Scale::parse(suffix).ok_or_else(|| QuantityError::UnknownSuffix {
            value: shown(text),
            suffix: shown(suffix),
        })?;
        let magnitude = magnitude_nanos(whole, fraction, scale)
            .ok_or_else(|| QuantityError::TooLarge { value: shown(text) })?;
        let nanos = if negative { -magnitude } else { magnitude };
        Ok(Self { nanos, family: scale.family })
    }

    pub fn is_negative(&self) -> bool {
        self.nanos < 0
    }

    pub fn is_zero(&self) -> bool {
        self.nanos == 0
    }

    /// The whole number of units (for memory: bytes), a fraction rounded away from zero as
    /// Kubernetes does: a request for less than one unit gets one.
    pub fn value(&self) -> i128 {
        let whole = self.nanos / NANOS_PER_UNIT;
        if self.nanos % NANOS_PER_UNIT == 0 { whole } else { whole + self.nanos.signum() }
    }

    /// The form the API server stores, which depends on the value and the suffix family alone.
    ///
    /// One corner differs from Go: a binary value that no binary suffix divides (`1.953125Ki`) is
    /// written as the decimal it then is (`2k`, where Go writes `2000` and, parsed again, `2k`). So
    /// the form is a fixed point, which a fingerprint needs.
    pub fn canonical(&self) -> String {
        if self.is_zero() {
            return "0".to_owned();
        }
        match self.family {
            Family::Binary => self.binary_form().unwrap_or_else(|| self.decimal_form()),
            Family::Decimal => self.decimal_form(),
            Family::Exponent => self.exponent_form(),
        }
    }

    /// None where the binary form would lose a fraction or has no suffix to carry.
    fn binary_form(&self) -> Option<String> {
        if self.nanos % NANOS_PER_UNIT != 0 {
            return None;
        }
        let units = self.nanos / NANOS_PER_UNIT;
        let (suffix, bits) =
            BINARY_SUFFIXES.iter().rev().find(|(_, bits)| units % (1 << bits) == 0)?;
        Some(format!("{}{suffix}", units >> bits))
    }

    fn decimal_form(&self) -> String {
        let (number, exponent) = self.in_thousands();
        let suffix = DECIMAL_SUFFIXES.iter().find(|(_, e)| *e == exponent).map_or("", |(s, _)| s);
        format!("{number}{suffix}")
    }

    fn exponent_form(&self) -> String {
        match self.in_thousands() {
            (number, 0) => number.to_string(),
            (number, exponent) => format!("{number}e{exponent}"),
        }
    }

    /// The shortest whole number and its exponent, a multiple of three for which a suffix exists.
    fn in_thousands(&self) -> (i128, i64) {
        let mut number = self.nanos;
        let mut exponent = -NANO_DIGITS;
        while number != 0 && number % 1000 == 0 && exponent < 18 {
            number /= 1000;
            exponent += 3;
        }
        (number, exponent)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.nanos == other.nanos
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        self.nanos.cmp(&other.nanos)
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.canonical())
    }
}

/// The factor of a suffix: `2^bits * 10^tens`, of which one exponent is always zero.
#[derive(Clone, Copy)]
struct Scale {
    family: Family,
    bits: u32,
    tens: i64,
}

impl Scale {
    fn parse(suffix: &str) -> Option<Self> {
        if let Some((_, bits)) = BINARY_SUFFIXES.iter().find(|(s, _)| *s == suffix) {
            return Some(Self { family: Family::Binary, bits: *bits, tens: 0 });
        }
        // Before the exponents: `E` alone is exa.
        if let Some((_, tens)) = DECIMAL_SUFFIXES.iter().find(|(s, _)| *s == suffix) {
            return Some(Self { family: Family::Decimal, bits: 0, tens: *tens });
        }
        let (negative, digits) = split_sign(suffix.strip_prefix(['e', 'E'])?);
        if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
            return None;
        }
        // An exponent beyond i32 is refused by Kubernetes too.
        let tens = i64::from(digits.parse::<i32>().ok()?);
        let tens = if negative { -tens } else { tens };
        Some(Self { family: Family::Exponent, bits: 0, tens })
    }
}

fn split_sign(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

/// The value in nanos, rounded up; None when it is too large.
///
/// Works on decimal digits and not on integers, because Kubernetes accepts any number of digits and
/// rounds only at the end: `0.1000...0001` of any length is more than `100m`.
fn magnitude_nanos(whole: &str, fraction: &str, scale: Scale) -> Option<i128> {
    let mut digits: Vec<u8> = whole.bytes().chain(fraction.bytes()).map(|b| b - b'0').collect();
    let mut point = i64::try_from(whole.len()).ok()?;
    for _ in 0..scale.bits {
        point += i64::from(double(&mut digits));
    }
    let zeros = digits.iter().take_while(|d| **d == 0).count();
    digits.drain(..zeros);
    if digits.is_empty() {
        return Some(0);
    }
    point += scale.tens + NANO_DIGITS - i64::try_from(zeros).ok()?;
    // The first digit is not zero, so `point` counts the digits of the result. A limit on it also
    // keeps a huge exponent from costing memory or time.
    if point > 39 {
        return None;
    }
    let kept = usize::try_from(point.max(0)).ok()?;
    let mut nanos: u128 = 0;
    for position in 0..kept {
        let digit = digits.get(position).copied().unwrap_or(0);
        nanos = nanos.checked_mul(10)?.checked_add(u128::from(digit))?;
    }
    if digits.iter().skip(kept).any(|d| *d != 0) {
        nanos = nanos.checked_add(1)?;
    }
    if nanos > MAX_NANOS {
        return None;
    }
    i128::try_from(nanos).ok()
}

/// Doubles a decimal number in place; true when it grew by a digit in front.
fn double(digits: &mut Vec<u8>) -> bool {
    let mut carry = 0;
    for digit in digits.iter_mut().rev() {
        let doubled = *digit * 2 + carry;
        *digit = doubled % 10;
        carry = doubled / 10;
    }
    if carry > 0 {
        digits.insert(0, carry);
    }
    carry > 0
}

/// A value in an error message, cut: a message must stay readable for any input.
fn shown(text: &str) -> String {
    const LIMIT: usize = 60;
    if text.chars().count() <= LIMIT {
        return text.to_owned();
    }
    text.chars().take(LIMIT - 1).chain(['…']).collect()
}

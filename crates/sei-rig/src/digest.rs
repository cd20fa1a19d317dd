//! Deterministic digests.

use ring::digest::{SHA256, digest};

/// The SHA-256 of a text as 64 hex digits.
pub(crate) fn sha256_hex(text: &str) -> String {
    hex(digest(&SHA256, text.as_bytes()).as_ref())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits
        .map(|digit| char::from_digit(digit.into(), 16).expect("a hex digit is below 16"))
        .collect()
}

//! Deterministic digests.

use ring::digest::{SHA256, digest};

/// The SHA-256 of a text as 64 hex digits.
pub(crate) fn sha256_hex(text: &str) -> String {
    hex(&sha256(text))
}

pub(crate) fn sha256(text: &str) -> Vec<u8> {
    digest(&SHA256, text.as_bytes()).as_ref().to_vec()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits
        .map(|digit| char::from_digit(digit.into(), 16).expect("a hex digit is below 16"))
        .collect()
}

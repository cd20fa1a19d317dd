pub mod adoption;
pub mod diff;
pub mod fingerprint;
pub mod quantity;

#[cfg(test)]
mod fixtures;
mod place;

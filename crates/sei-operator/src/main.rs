//! The operator. See the library for what it does.

fn main() {}

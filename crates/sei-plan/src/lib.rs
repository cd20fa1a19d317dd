pub mod inputs;
pub mod platform;
pub mod quantity;
pub mod render;
#[cfg(test)]
mod testing;

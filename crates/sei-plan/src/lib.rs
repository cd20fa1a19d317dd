pub mod platform;
pub mod quantity;

pub mod quantity;

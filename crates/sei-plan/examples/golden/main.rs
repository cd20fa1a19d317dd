//! Writes the golden files into a folder, or compares them: `golden <folder> [--check]`.
//!
//! Started by `cargo xtask codegen`, which may not use the crate that renders.

#![allow(clippy::print_stdout, reason = "its output is for the person who typed the command")]

mod corpus;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match args[..] {
        [folder] => corpus::write(Path::new(folder)).map(|done| match done.len() {
            0 => println!("unchanged  {folder}"),
            _ => println!("{}", done.join("\n")),
        }),
        [folder, "--check"] => corpus::check(Path::new(folder)),
        _ => Err("usage: golden <folder> [--check]".to_owned()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

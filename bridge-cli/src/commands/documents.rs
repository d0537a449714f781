//! `bridge completions` and `bridge man`: files made of the command line itself, for shells and for
//! `man`.

use std::path::PathBuf;

use clap::{Args, Command};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::output::line;

/// The shell to complete in.
#[derive(Debug, Args)]
pub struct Completions {
    /// The shell.
    #[arg(value_enum)]
    shell: Shell,
}

/// Folder of the man pages.
#[derive(Debug, Args)]
pub struct Man {
    /// Folder to write a page for each command to; it is made if it is missing.
    folder: PathBuf,
}

/// Prints the completions of `program` for a shell.
pub fn completions(arguments: &Completions, mut program: Command) -> Result<u8, Failure> {
    let name = program.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut program, name, &mut script);
    line(String::from_utf8_lossy(&script).trim_end());
    Ok(0)
}

/// Writes the man pages of `program`.
pub fn man(arguments: &Man, program: Command) -> Result<u8, Failure> {
    let folder = &arguments.folder;
    let unusable = |error| Failure::input(format!("{}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(unusable)?;
    clap_mangen::generate_to(program, folder).map_err(unusable)?;
    let pages = std::fs::read_dir(folder).map_err(unusable)?.count();
    line(&format!("{}: {pages} pages", folder.display()));
    Ok(0)
}

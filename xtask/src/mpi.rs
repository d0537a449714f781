//! Check that MPI programs can be built and started here, and advice on packages to install.

use std::process::Command;

/// Checks for the compiler wrapper and the launcher of an MPI library.
///
/// # Errors
/// The message names the missing program and the package to install.
pub fn installed() -> Result<(), String> {
    for (program, packages) in [("mpicc", "libopenmpi-dev"), ("mpirun", "openmpi-bin")] {
        let found = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
        if !found {
            return Err(format!(
                "`{program}` was not found (Debian and Ubuntu: apt-get install {packages} libclang1-14 libclang-common-14-dev)"
            ));
        }
    }
    Ok(())
}

//! Names the packages to install when the feature `mpi` is on and no MPI is found. The bindings'
//! own error is long and names no package.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MPICC");
    println!("cargo:rerun-if-env-changed=MPI_PKG_CONFIG");
    // On Windows the bindings find Microsoft MPI through the environment.
    if std::env::var_os("CARGO_FEATURE_MPI").is_none() || cfg!(windows) {
        return;
    }
    let mpicc = std::env::var("MPICC").unwrap_or_else(|_| "mpicc".to_owned());
    if succeeds(&mpicc, &["-show"])
        || ["ompi", "mpich", "mpi"].iter().any(|name| succeeds("pkg-config", &["--exists", name]))
    {
        return;
    }
    eprintln!(
        "\nThe cargo feature `mpi` of bridge-dist needs an MPI library, and `{mpicc}` does not run.\n\
         Install one with its headers, and libclang, which makes the bindings:\n\
         \x20   Debian, Ubuntu:  apt-get install libopenmpi-dev openmpi-bin libclang-dev\n\
         \x20   Fedora, RHEL:    dnf install openmpi-devel clang-devel  (then: module load mpi)\n\
         \x20   macOS:           brew install open-mpi llvm\n\
         On a cluster, load the MPI module (`module load openmpi`). An MPI elsewhere is chosen with MPICC=/path/to/mpicc.\n\
         Or build without the feature: ranks are then threads of one process.\n"
    );
    std::process::exit(1);
}

fn succeeds(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).output().is_ok_and(|output| output.status.success())
}

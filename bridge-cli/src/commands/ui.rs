//! `bridge ui`: a page on which runs are compared, served from their files.
//!
//! Without the cargo feature `ui`, the command fails and names the feature.

use std::net::IpAddr;
#[cfg(feature = "ui")]
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
#[cfg(feature = "ui")]
use std::sync::Arc;

#[cfg(feature = "ui")]
use bridge_core::logging::terminal::complain;
#[cfg(feature = "ui")]
use bridge_ui::{Library, serve};
use clap::Args;
#[cfg(feature = "ui")]
use serde_json::json;

use crate::failure::Failure;
#[cfg(feature = "ui")]
use crate::output::line;

/// Serve a page on which runs are compared: curves, settings, checkpoints, health, traces.
#[derive(Debug, Args)]
pub struct Arguments {
    /// A folder with log folders of runs, or one of them.
    #[arg(default_value = "runs", value_name = "RUNS_DIR")]
    folder: PathBuf,
    /// Address to listen at. Others than this machine's own are open to whoever reaches them.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Port to listen at; 0 for any that is free.
    #[arg(long, default_value_t = 8501)]
    port: u16,
    /// Memory for figures of runs, in GiB; those that nobody looks at make room.
    #[arg(long, default_value_t = 2.0, value_name = "GIB")]
    memory: f64,
    /// Print a line of JSON when the page is there: `url`, `runs`.
    #[arg(long)]
    json: bool,
}

/// Not supported by this build.
#[cfg(not(feature = "ui"))]
pub fn run(_arguments: &Arguments) -> Result<u8, Failure> {
    Err(Failure::without_feature("bridge ui", "ui"))
}

/// Runs the command.
#[cfg(feature = "ui")]
pub fn run(arguments: &Arguments) -> Result<u8, Failure> {
    let folder = &arguments.folder;
    if !(0.01..=1e6).contains(&arguments.memory) {
        let found = arguments.memory;
        return Err(Failure::input(format!("--memory: expected GiB from 0.01 to 1000000, found {found}")));
    }
    if !folder.is_dir() {
        return Err(Failure::input(format!("{}: there is no such folder", folder.display())));
    }
    let root = folder.canonicalize().map_err(|error| Failure::input(format!("{}: {error}", folder.display())))?;
    let library = Library::open(root, (arguments.memory * f64::from(1 << 30)) as usize);
    let (count, problems) = library.found();
    for problem in &problems {
        complain(&format!("warning: {problem}; left out"));
    }
    if count == 0 {
        let folder = folder.display();
        return Err(Failure::input(format!("no run in {folder}: a run's log folder has metrics.jsonl")));
    }
    let address = SocketAddr::new(arguments.host, arguments.port);
    let listener = TcpListener::bind(address).map_err(|error| {
        Failure::run(format!("cannot listen at {address}: {error}; --port 0 takes a port that is free"))
    })?;
    let address = listener.local_addr().map_err(Failure::run)?;
    if !address.ip().is_loopback() {
        complain(&format!("warning: whoever reaches {address} can read the runs"));
    }
    if arguments.json {
        line(&json!({ "url": format!("http://{address}/"), "runs": count }).to_string());
    } else {
        line(&format!("{count} runs at http://{address}/ (Ctrl-C ends it)"));
    }
    serve(listener, &Arc::new(library)).map_err(Failure::run)?;
    Ok(0)
}

//! An S3 server on a folder: `bridge-s3-server FOLDER ACCESS_KEY SECRET_KEY [PORT]`. It prints its
//! address, and serves until it is killed.

use std::error::Error;
use std::io::Write as _;

use hyper_util::rt::TokioIo;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;
use tokio::net::TcpListener;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, access, secret, port @ ..] = &arguments[..] else {
        return Err("usage: bridge-s3-server FOLDER ACCESS_KEY SECRET_KEY [PORT]".into());
    };
    let port = port.first().map_or(Ok(0), |port| port.parse::<u16>())?;
    let files = FileSystem::new(folder).map_err(|error| format!("{folder}: {error:?}"))?;
    let mut service = S3ServiceBuilder::new(files);
    service.set_auth(SimpleAuth::from_single(access.clone(), secret.clone()));
    let service = service.build();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async move {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        println!("http://{}", listener.local_addr()?);
        std::io::stdout().flush()?;
        loop {
            let (socket, _) = listener.accept().await?;
            let service = service.clone();
            tokio::spawn(async move {
                // A client that disconnects does not stop the server.
                let _ = hyper_util::server::conn::auto::Builder::new(hyper_util::rt::TokioExecutor::new())
                    .serve_connection(TokioIo::new(socket), service)
                    .await;
            });
        }
    })
}

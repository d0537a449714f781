//! Checkpoints in an object store, against an S3 server that is a process of its own and is killed
//! while saves are in progress.

#[path = "../examples/examples/object_store.rs"]
#[allow(dead_code, reason = "main is not called")]
mod object_store;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use bridge_core::checkpoint::CheckpointManager;
use bridge_core::config::{World, load};
use bridge_core::train::{Console, RunOptions, pretrain};
use bridge_models::registry;
use bridge_objects::{ObjectStoreManager, StoreSettings};
use bridge_tests::{program, recipe, records_in, root};

const KEYS: [&str; 2] = ["the-access-key", "the-secret-key"];
/// Address of the server, for a trainer in a process of its own.
const ADDRESS: &str = "BRIDGE_TEST_OBJECTS";

/// The server's binary. It is built where it is wanted: its workspace is its own.
fn server_binary() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let folder = root().join("tests/s3_server");
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".into());
        let mut build = Command::new(cargo);
        build.args(["build", "--release", "--locked", "--quiet", "--target-dir"]).arg(folder.join("target"));
        let status = build.current_dir(&folder).status().expect("cargo starts");
        assert!(status.success(), "the S3 server of {} does not build", folder.display());
        folder.join("target/release/bridge-s3-server")
    })
}

/// A server with one bucket in a folder, on a port that stays its own when it is killed and started
/// again.
struct Server {
    folder: tempfile::TempDir,
    process: Mutex<Child>,
    address: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Server {
    fn start() -> Arc<Self> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("bucket")).unwrap();
        let (process, address) = spawned(folder.path(), "0");
        Arc::new(Self { folder, process: Mutex::new(process), address })
    }

    /// Kills the server like `kill -9`.
    fn kill(&self) {
        let mut process = self.process.lock().unwrap();
        process.kill().unwrap();
        process.wait().unwrap();
    }

    fn start_again(&self) {
        let port = self.address.rsplit(':').next().unwrap();
        *self.process.lock().unwrap() = spawned(self.folder.path(), port).0;
    }

    fn manager(&self) -> ObjectStoreManager {
        manager(&self.address)
    }

    fn listed(&self) -> Vec<u64> {
        let mut listed = self.manager().list().unwrap();
        listed.sort_unstable();
        listed
    }

    /// Objects of a checkpoint, found in the server's folder on disk.
    fn objects(&self, iteration: u64) -> Vec<PathBuf> {
        let folder = self.folder.path().join(format!("bucket/runs/one/iter_{iteration:07}"));
        std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    }
}

fn spawned(folder: &Path, port: &str) -> (Child, String) {
    let mut command = Command::new(server_binary());
    command.arg(folder).args(KEYS).arg(port).stdout(Stdio::piped());
    let mut process = command.spawn().expect("the server starts");
    let mut address = String::new();
    BufReader::new(process.stdout.take().unwrap()).read_line(&mut address).unwrap();
    (process, address.trim().to_owned())
}

fn manager(address: &str) -> ObjectStoreManager {
    ObjectStoreManager::open(&settings(address)).unwrap()
}

fn settings(address: &str) -> StoreSettings {
    let mut settings = StoreSettings::new("s3://bucket/runs/one");
    let options = [
        ("aws_endpoint", address),
        ("aws_access_key_id", KEYS[0]),
        ("aws_secret_access_key", KEYS[1]),
        ("aws_region", "us-east-1"),
    ];
    settings.options = options.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
    // The least that S3 takes: shards are stored in several parts.
    settings.part_bytes = 5 << 20;
    settings.timeout = Duration::from_secs(4);
    settings.patience = Duration::from_secs(6);
    settings
}

/// Trains the tiny recipe to a step, with logs and checkpoints in `folder`.
fn train(folder: &Path, manager: Option<ObjectStoreManager>, until: u64) -> Result<(), String> {
    let mut overrides = vec![
        format!("logger.log_dir={:?}", folder.join("logs")),
        format!("train.exit_interval={until}"),
        "train.train_iters=6".into(),
        "train.num_threads=1".into(),
        // The model has 8 MB, its optimizer 16.
        "model.vocab_size=16000".into(),
        "train.global_batch_size=2".into(),
        "train.micro_batch_size=1".into(),
        "validation.eval_iters=0".into(),
        "logger.log_interval=1".into(),
    ];
    let mut managers: BTreeMap<String, Arc<dyn CheckpointManager>> = BTreeMap::new();
    if let Some(manager) = manager {
        managers.insert("objects".into(), Arc::new(manager));
        overrides.extend([
            format!("checkpoint.save={:?}", folder.join("saved")),
            "checkpoint.save_interval=1".into(),
            "checkpoint.most_recent_k=2".into(),
            "checkpoint.custom_manager_class=objects".into(),
        ]);
    }
    let config = load(&recipe(), &overrides, &registry().kinds(), &World { size: 1 }).map_err(|e| e.to_string())?;
    let options = RunOptions { managers, console: Console::Silent, ..RunOptions::new(registry()) };
    pretrain(config, options).map(drop).map_err(|error| error.to_string())
}

/// The run goes on in an empty folder, as on another machine, from the step after `from`, to the
/// numbers of one without a break.
fn goes_on(server: &Server, from: u64) {
    static PLAIN: OnceLock<tempfile::TempDir> = OnceLock::new();
    let plain = PLAIN.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        train(folder.path(), None, 6).unwrap();
        folder
    });
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), Some(server.manager()), 6).unwrap();
    let records = records_in(&folder.path().join("logs"), "train");
    let expected = records_in(&plain.path().join("logs"), "train");
    assert_eq!(expected.len(), 6);
    assert_eq!(records, expected[from as usize..]);
    assert_eq!(server.listed(), [5, 6]);
    for iteration in 1..5 {
        assert_eq!(server.objects(iteration), [""; 0].map(PathBuf::from), "iteration {iteration}");
    }
}

#[test]
fn a_run_goes_on_from_a_bucket_bit_for_bit_and_what_is_old_is_deleted() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    train(folder.path(), Some(server.manager()), 4).unwrap();
    assert_eq!(server.listed(), [3, 4]);
    // Objects are the files.
    for object in server.objects(4).iter().filter(|path| path.is_file()) {
        let file = folder.path().join("saved/iter_0000004").join(object.file_name().unwrap());
        assert_eq!(std::fs::read(object).unwrap(), std::fs::read(file).unwrap(), "{}", object.display());
    }
    goes_on(&server, 4);
}

#[test]
fn a_server_that_is_killed_within_a_save_has_the_checkpoint_before() {
    // After the first part of all, in the middle of a shard, between files.
    for transfers in [1, 3, 5, 8] {
        let server = Server::start();
        let folder = tempfile::tempdir().unwrap();
        train(folder.path(), Some(server.manager()), 2).unwrap();
        let (killed, count) = (Arc::clone(&server), AtomicUsize::new(0));
        let manager = server.manager().on_transfer(move |transfer| {
            if transfer.iteration == 3 && count.fetch_add(1, Ordering::SeqCst) + 1 == transfers {
                killed.kill();
            }
        });
        let began = Instant::now();
        let error = train(folder.path(), Some(manager), 6).unwrap_err();
        for part in ["custom_manager_class = objects", "iteration 3", "iter_0000003", "s3://bucket/runs/one"] {
            assert!(error.contains(part), "{part} in {error}");
        }
        assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());
        server.start_again();
        assert_eq!(server.listed(), [1, 2], "after {transfers} transfers");
        goes_on(&server, 2);
    }
}

#[test]
#[ignore = "a part of the next one, in a process of its own"]
fn trainer() {
    let address = std::env::var(ADDRESS).expect("the next test starts this");
    let (address, folder) = address.split_once(' ').unwrap();
    let count = AtomicUsize::new(0);
    let manager = manager(address).on_transfer(move |transfer| {
        if transfer.iteration == 3 && count.fetch_add(1, Ordering::SeqCst) == 3 {
            let _ = Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
            std::thread::sleep(Duration::from_secs(60));
        }
    });
    train(Path::new(folder), Some(manager), 6).unwrap();
}

#[test]
fn a_trainer_that_is_killed_within_a_save_leaves_the_checkpoint_before() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let mut trainer = Command::new(std::env::current_exe().unwrap());
    trainer
        .args(["--ignored", "--exact", "trainer"])
        .env(ADDRESS, format!("{} {}", server.address, folder.path().display()));
    let status = trainer.stdout(Stdio::null()).status().unwrap();
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status}");
    // The stored files are not a checkpoint, and are deleted before the next run saves.
    assert_eq!(server.listed(), [1, 2]);
    assert!(!server.objects(3).is_empty());
    server.manager().clear_up().unwrap();
    assert_eq!((server.listed(), server.objects(3).iter().filter(|path| path.is_file()).count()), (vec![1, 2], 0));
    goes_on(&server, 2);
}

#[test]
fn a_flipped_bit_is_found_and_the_one_before_is_taken() {
    for damaged in ["model-rank00000.safetensors", "metadata.json"] {
        let server = Server::start();
        let folder = tempfile::tempdir().unwrap();
        train(folder.path(), Some(server.manager()), 3).unwrap();
        let object = server.objects(3).into_iter().find(|path| path.ends_with(damaged)).expect(damaged);
        let mut bytes = std::fs::read(&object).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&object, bytes).unwrap();
        goes_on(&server, 2);
    }
}

#[test]
fn a_server_that_is_down_is_an_error_soon_and_leaves_nothing() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    server.kill();
    let began = Instant::now();
    let error = train(folder.path(), Some(server.manager()), 6).unwrap_err();
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    for part in ["custom_manager_class = objects", "list", "s3://bucket/runs/one", "refused"] {
        assert!(error.to_lowercase().contains(part), "{part} in {error}");
    }
    let left = std::fs::read_dir(folder.path().join("saved")).into_iter().flatten().flatten();
    assert_eq!(left.filter(|entry| entry.file_name().to_string_lossy().contains("iter_")).count(), 0);
}

#[test]
fn wrong_keys_places_and_options_are_told() {
    let server = Server::start();
    let with = |url: &str, more: &[(&str, &str)]| {
        let mut settings = StoreSettings::new(url);
        let options =
            [("aws_endpoint", &server.address[..]), ("aws_access_key_id", KEYS[0]), ("aws_region", "us-east-1")];
        settings.options =
            options.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        settings.timeout = Duration::from_secs(4);
        settings.patience = Duration::from_secs(6);
        ObjectStoreManager::open(&settings)
            .map_err(|error| error.to_string())?
            .list()
            .map_err(|error| error.to_string())
    };
    let secret = ("aws_secret_access_key", KEYS[1]);
    assert_eq!(with("s3://bucket/runs", &[secret]).unwrap(), [0; 0]);
    let error = with("s3://bucket/runs", &[("aws_secret_access_key", "another")]).unwrap_err();
    assert!(error.contains("403") && error.contains("s3://bucket/runs"), "{error}");
    let error = with("s3://no-bucket/runs", &[secret]).unwrap_err();
    assert!(error.contains("404") || error.contains("NoSuchBucket"), "{error}");
    let error = with("s3://bucket", &[("aws_regoin", "x")]).unwrap_err();
    assert!(error.contains("aws_regoin"), "{error}");
    let small = StoreSettings { part_bytes: 64 << 10, ..StoreSettings::new("s3://bucket") };
    let error = ObjectStoreManager::open(&small).unwrap_err().to_string();
    assert!(error.contains("65536") && error.contains("5242880"), "{error}");
    for url in ["bucket/runs", "ftp://bucket/runs", "s3:///runs"] {
        let error = with(url, &[secret]).unwrap_err();
        assert!(error.contains("expected s3://BUCKET"), "{error}");
    }
}

#[test]
fn the_example_goes_on_after_its_folder_is_lost() {
    let server = Server::start();
    let folder = tempfile::tempdir().unwrap();
    let part = |until: u64| {
        let overrides = [
            format!("logger.log_dir={:?}", folder.path().join("logs")),
            format!("checkpoint.save={:?}", folder.path().join("saved")),
            "checkpoint.save_interval=2".into(),
            "train.train_iters=8".into(),
            format!("train.exit_interval={until}"),
        ];
        object_store::train(&settings(&server.address), &overrides, Console::Silent).unwrap().train_state.step
    };
    assert_eq!(part(4), 4);
    assert_eq!(server.listed(), [2, 4]);
    std::fs::remove_dir_all(folder.path()).unwrap();
    assert_eq!(part(8), 8);
    assert_eq!(server.listed(), [4, 6, 8]);
}

#[test]
fn the_command_line_keeps_checkpoints_at_an_address() {
    let server = Server::start();
    let train = |folder: &Path, address: &str, until: u64| {
        let mut command = Command::new(program());
        command.arg("train").arg(recipe()).current_dir(folder);
        command.args(["logger.log_dir=logs", "checkpoint.save=saved", "checkpoint.save_interval=2", "--ranks=2"]);
        command.args([
            "train.train_iters=6",
            "validation.eval_iters=0",
            "logger.progress=none",
            "logger.log_interval=1",
        ]);
        command.arg(format!("train.exit_interval={until}"));
        command.arg(format!("checkpoint.custom_manager_class={address}"));
        let variables = [
            ("AWS_ENDPOINT_URL", &server.address[..]),
            ("AWS_ACCESS_KEY_ID", KEYS[0]),
            ("AWS_SECRET_ACCESS_KEY", KEYS[1]),
            ("AWS_REGION", "us-east-1"),
        ];
        let output = command.envs(variables).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let address = "s3://bucket/runs/one";
    let (whole, lost, next) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (code, said) = train(whole.path(), "s3://bucket/runs/whole", 6);
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = train(lost.path(), address, 4);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(server.listed(), [2, 4]);
    // On another machine.
    let (code, said) = train(next.path(), address, 6);
    assert_eq!(code, Some(0), "{said}");
    let losses = |folder: &tempfile::TempDir| records_in(&folder.path().join("logs"), "train");
    assert_eq!([losses(&lost), losses(&next)].concat(), losses(&whole));
    let (code, said) = train(next.path(), "elsewhere", 6);
    assert_eq!(code, Some(2), "{said}");
    for part in ["checkpoint.custom_manager_class", "elsewhere", "expected s3://BUCKET"] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

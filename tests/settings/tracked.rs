//! Identity of a run in the files for trackers: project, owner, names and tags.

use std::path::Path;

use serde_json::Value;

/// Names in those files of `paths` that are below `folder`.
pub fn names(paths: &[String], folder: &Path) -> Vec<String> {
    let mut names = Vec::new();
    for path in paths {
        let bytes = || std::fs::read(folder.join(path)).expect("a file of the run");
        match path.rsplit_once('.') {
            Some((_, "wandb")) => names.extend(of_wandb(&bytes())),
            Some((_, "zip")) => names.extend(of_comet(&bytes())),
            _ => {}
        }
    }
    names.sort();
    names
}

/// Entity, project and name of the second record (`Record.run` of `wandb_internal.proto`), which is
/// in the first block.
fn of_wandb(log: &[u8]) -> Vec<String> {
    let second = 14 + usize::from(u16::from_le_bytes([log[11], log[12]]));
    let length = usize::from(u16::from_le_bytes([log[second + 4], log[second + 5]]));
    let record = fields(&log[second + 7..second + 7 + length]);
    let (_, run) = record.iter().find(|(number, _)| *number == 17).expect("the run");
    let of_run = fields(run).into_iter().filter(|(number, _)| [2, 3, 8].contains(number));
    of_run.map(|(number, text)| format!("wandb {number}: {}", String::from_utf8_lossy(&text))).collect()
}

/// The fields of a message that have bytes.
fn fields(mut message: &[u8]) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let (key, value) = (number(&mut message), number(&mut message));
        if key % 8 == 2 {
            let (content, rest) = message.split_at(value as usize);
            found.push((key / 8, content.to_vec()));
            message = rest;
        }
    }
    found
}

fn number(bytes: &mut &[u8]) -> u64 {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0).expect("an end of the number") + 1;
    let (digits, rest) = bytes.split_at(length);
    *bytes = rest;
    digits.iter().rev().fold(0, |sum, digit| sum << 7 | u64::from(digit & 0x7f))
}

/// Names in the archive's experiment, which is not compressed.
fn of_comet(archive: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(archive);
    let name = text.lines().find(|line| line.contains("\"key\":\"Name\"")).expect("the name");
    let name: Value = serde_json::from_str(name).expect("a message");
    let at = text.rfind("{\"offline_id\"").expect("the experiment");
    let mut values = serde_json::Deserializer::from_str(&text[at..]).into_iter::<Value>();
    let experiment = values.next().expect("the experiment").expect("JSON");
    let of = |key: &str| format!("comet {key}: {}", experiment[key]);
    vec![format!("comet name: {}", name["payload"]["value"]), of("project_name"), of("workspace"), of("tags")]
}

//! Finding files and reading documents from temporary folders.

use super::*;

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("temporary folder");
    for (name, content) in files {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("has a parent")).expect("folder");
        std::fs::write(path, content).expect("written");
    }
    folder
}

fn params(folder: &tempfile::TempDir, patterns: &[&str]) -> SourceParams {
    let inputs = patterns.iter().map(|pattern| format!("{}/{pattern}", folder.path().display())).collect();
    SourceParams { inputs, ..SourceParams::default() }
}

fn texts(params: &SourceParams) -> Vec<Text> {
    let source = TextSource::resolve(params).expect("resolvable");
    let documents = source.documents().expect("readable");
    documents.map(|document| document.and_then(RawDocument::into_text).expect("readable")).collect()
}

fn valid(text: &str) -> Text {
    Text::Valid(text.to_owned())
}

#[test]
fn globs_are_sorted_excluded_and_read_once() {
    let files = folder(&[("b.txt", b"B"), ("a.txt", b"A"), ("d/c.txt", b"C"), ("d/skip.txt", b"S"), ("e.md", b"E")]);
    let mut params = params(&files, &["**/*.txt", "a.txt", "e.md"]);
    params.exclude = vec![format!("{}/**/skip*", files.path().display())];
    assert_eq!(texts(&params), [valid("A"), valid("B"), valid("C"), valid("E")]);
}

#[test]
fn max_bytes_takes_whole_files() {
    let files = folder(&[("a.txt", b"12345"), ("b.txt", b"123"), ("c.txt", b"1")]);
    let mut params = params(&files, &["*.txt"]);
    params.max_bytes = Some(7);
    let source = TextSource::resolve(&params).expect("resolvable");
    assert_eq!((source.files().len(), source.total_bytes()), (1, Some(5)));
    params.max_bytes = Some(4);
    assert!(TextSource::resolve(&params).expect_err("too small").to_string().contains("5 bytes"));
}

#[test]
fn json_lines_and_their_errors() {
    let lines = b"{\"text\": \"one\\n\"}\n\n{\"text\": \"\"}\n{\"text\": \"two\", \"n\": 1}";
    let files = folder(&[("a.jsonl", lines), ("bad.jsonl", b"{\"text\": \"ok\"}\n{\"body\": 1}\n")]);
    assert_eq!(texts(&params(&files, &["a.jsonl"])), [valid("one\n"), Text::Empty, Text::Empty, valid("two")]);

    let source = TextSource::resolve(&params(&files, &["bad.jsonl"])).expect("resolvable");
    let last = source.documents().expect("readable").last().expect("two lines").expect("read");
    assert_eq!(last.at, At::Line(2));
    let error = last.into_text().expect_err("no key").to_string();
    assert!(error.contains("line 2") && error.contains("body"), "{error}");

    let other = SourceParams { format: TextFormat::JsonLines { key: "body".into() }, ..params(&files, &["bad.jsonl"]) };
    let source = TextSource::resolve(&other).expect("resolvable");
    let last = source.documents().expect("readable").last().expect("two lines").expect("read");
    assert!(last.into_text().expect_err("a number").to_string().contains("found 1"));
}

#[test]
fn lines_that_are_no_documents_are_named() {
    let message = |line: &[u8]| {
        let files = folder(&[("a.jsonl", &[b"\n", line].concat())]);
        let source = TextSource::resolve(&params(&files, &["a.jsonl"])).expect("resolvable");
        let last = source.documents().expect("readable").last().expect("two lines").expect("readable");
        last.into_text().expect_err("no document").to_string()
    };
    assert!(message(br#"{"text": "3"#).ends_with("line 2: not JSON: EOF while parsing a string at column 11"));
    assert!(message(b"[1, 2]").ends_with("line 2: expected an object with the key \"text\", found [1,2]"));
    let long = message(format!("{{\"text\": [{}]}}", "1,".repeat(1000) + "1").as_bytes());
    assert!(long.ends_with("...") && long.len() < 200, "{long}");
}

#[test]
fn a_byte_order_mark_is_no_text() {
    let files = folder(&[
        ("a.jsonl", "\u{feff}{\"text\": \"one\"}\n{\"text\": \"\u{feff}\"}".as_bytes()),
        ("b.txt", "\u{feff}two\u{feff}".as_bytes()),
        ("c.txt", "\u{feff}".as_bytes()),
    ]);
    assert_eq!(texts(&params(&files, &["*.txt"])), [valid("two\u{feff}"), Text::Empty]);
    assert_eq!(texts(&params(&files, &["a.jsonl"])), [valid("one"), valid("\u{feff}")]);
}

#[test]
fn text_that_is_not_utf8_is_told_apart() {
    let files = folder(&[
        ("a.txt", b"\xff\xfe"),
        ("b.jsonl", b"{\"text\": \"\xff\"}\n"),
        ("c.txt", b""),
        ("d.txt", b"a\0b"),
        ("e.txt", b"\x1f\x8b\x08\x00"),
    ]);
    let expected = [
        Text::NoText("not UTF-8"),
        Text::NoText("not UTF-8"),
        Text::Empty,
        Text::NoText("binary: it has a byte 0"),
        Text::NoText("compressed: unpack it first"),
    ];
    assert_eq!(texts(&params(&files, &["*"])), expected);
}

#[test]
fn shuffling_is_a_repeatable_permutation_of_documents() {
    let lines: String = (0..50).map(|i| format!("{{\"text\": \"{i}\"}}\n")).collect();
    let files = folder(&[("a.jsonl", lines.as_bytes()), ("b.txt", b"B"), ("c.txt", b"C")]);
    let plain = params(&files, &["*"]);
    let shuffled = SourceParams { shuffle_seed: Some(7), ..plain.clone() };
    let (mut first, second) = (texts(&shuffled), texts(&shuffled));
    assert_eq!(first, second);
    let mut ordered = texts(&plain);
    assert_ne!(first, ordered);
    let key = |text: &Text| format!("{text:?}");
    first.sort_by_key(key);
    ordered.sort_by_key(key);
    assert_eq!(first, ordered);
}

#[test]
fn unusable_inputs_are_errors() {
    let files = folder(&[("a.txt", b"A")]);
    let message = |params: &SourceParams| TextSource::resolve(params).expect_err("refused").to_string();
    assert!(message(&SourceParams::default()).contains("no input"));
    assert!(message(&params(&files, &["*.md"])).contains("no file matches"));
    assert!(message(&params(&files, &["[z"])).contains("pattern"));
    let as_folder = SourceParams { inputs: vec![files.path().display().to_string()], ..SourceParams::default() };
    assert!(message(&as_folder).contains("is a folder"));
    let mut mixed = params(&files, &["a.txt"]);
    mixed.inputs.push("-".into());
    assert!(message(&mixed).contains("standard input"));
    let nothing_left = SourceParams { exclude: vec!["**/a.txt".into()], ..params(&files, &["a.txt"]) };
    assert!(message(&nothing_left).contains("leave no file"));
}

#[test]
fn fingerprints_change_with_the_files() {
    let files = folder(&[("a.txt", b"A")]);
    let params = params(&files, &["a.txt"]);
    let print = |params| TextSource::resolve(params).expect("resolvable").fingerprint();
    let before = print(&params);
    assert_eq!(before, print(&params));
    std::fs::write(files.path().join("a.txt"), b"AB").expect("written");
    assert_ne!(before, print(&params));
    let stdin = SourceParams { inputs: vec!["-".into()], ..SourceParams::default() };
    assert_eq!(print(&stdin), None);
}

#[cfg(feature = "finetuning")]
#[test]
fn packed_lists_and_lines_are_read() {
    use std::io::Write;

    let gzip = |text: &str| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(text.as_bytes()).expect("in memory");
        encoder.finish().expect("in memory")
    };
    let zstd = |text: &str| zstd::encode_all(text.as_bytes(), 1).expect("in memory");
    let lines = "{\"url\": \"u\", \"text\": \"one\"}\n{\"url\": \"v\", \"text\": null}\n";
    let (whole, cut) = (gzip(lines), gzip(lines));
    let files = folder(&[
        ("a.json.gz", &whole),
        ("b.jsonl.zst", &zstd("{\"id\": 1, \"content\": \"two\"}\n")),
        ("c.json", b"[\n {\"text\": \"three\"}, {\"text\": \"four\"}]"),
        ("d.txt.gz", &gzip("five")),
        ("e.json", b"{\"name\": \"settings\"}"),
        ("f.jsonl", b"\n{\"body\": \"six\", \"n\": 1}"),
        ("x.jsonl.gz", &cut[..cut.len() - 9]),
        ("y.jsonl", b"{\"title\": \"a\", \"abstract\": \"b\"}"),
        ("z.jsonl", b"{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}], \"note\": \"a\"}"),
        ("w.jsonl", b"{\"url\": \"u\", \"n\": 1}\n{\"url\": \"v\", \"text\": \"one\"}"),
    ]);
    assert_eq!(texts(&params(&files, &["a.json.gz"])), [valid("one"), Text::Empty]);
    let all = ["b.jsonl.zst", "c.json", "d.txt.gz", "e.json"];
    let expected = [valid("two"), valid("three"), valid("four"), valid("five"), valid("{\"name\": \"settings\"}")];
    assert_eq!(texts(&params(&files, &all)), expected);
    assert_eq!(texts(&params(&files, &["f.jsonl"])), [Text::Empty, valid("six")]);
    let failure = |params: &SourceParams| {
        let documents = TextSource::resolve(params).and_then(|source| source.documents());
        let read = documents.and_then(|documents| documents.map(|one| one.and_then(RawDocument::into_text)).collect());
        read.map(|_: Vec<Text>| ()).expect_err("refused").to_string()
    };
    assert!(failure(&params(&files, &["x.jsonl.gz"])).contains("x.jsonl.gz"));
    assert!(failure(&params(&files, &["y.jsonl"])).contains("name one of"));
    // The only string of a record may be its name and not its text.
    assert!(failure(&params(&files, &["z.jsonl"])).contains("\"note\" may not be the text"));
    assert!(failure(&params(&files, &["w.jsonl"])).contains("\"url\" may not be the text"));
    let shuffled = SourceParams { shuffle_seed: Some(1), ..params(&files, &["a.json.gz"]) };
    assert!(failure(&shuffled).contains("cannot be shuffled"));
    let sample = TextSource::resolve(&params(&files, &["*.gz", "c.json"])).expect("resolvable").sampled(40);
    assert_eq!(sample.total_bytes(), Some(40));
    drop(sample.documents().expect("readable").take(1).collect::<Vec<_>>());
}

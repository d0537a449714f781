//! The recipe of a checkpoint from another working directory: its relative paths are resolved
//! against the folder in which the run was started.

use std::path::{Component, Path, PathBuf};

use bridge_core::config::{Blend, OneOrMany, RawConfig};

/// The folder in which a run was started, if the path of its checkpoint shows it: the folder below
/// which the recipe's `checkpoint.save` is the checkpoint's folder.
pub fn start_folder(recipe: &RawConfig, checkpoint: &Path) -> Option<PathBuf> {
    let save = recipe.checkpoint.save.as_ref().filter(|save| save.is_relative())?;
    let checkpoint = std::fs::canonicalize(checkpoint).ok()?;
    let mut folder = checkpoint.parent()?;
    for part in save.components().rev() {
        match part {
            Component::CurDir => {}
            Component::Normal(name) if folder.file_name() == Some(name) => folder = folder.parent()?,
            _ => return None,
        }
    }
    Some(folder.to_owned())
}

/// Roots the relative paths of data and tokenizer in `folder`, the default of the packed text
/// included.
pub fn root_paths(recipe: &mut RawConfig, folder: &Path) {
    let rooted = |text: &str| {
        // Patterns may begin with a variable, and lists of token files may have weights.
        let is_other = text.starts_with(['/', '~', '$']) || text == "-" || text.parse::<f64>().is_ok();
        if is_other { text.to_owned() } else { folder.join(text).display().to_string() }
    };
    let root_blend = |blend: &mut Blend| blend.paths.iter_mut().for_each(|path| *path = rooted(path));
    let name = recipe.name.clone().unwrap_or_default();
    let dataset = &mut recipe.dataset.config;
    if dataset.source.is_some() && dataset.source_cache_dir.is_none() {
        dataset.source_cache_dir = Some(Path::new("data").join(name));
    }
    if let Some(source) = &mut dataset.source {
        each(source, &rooted);
    }
    if let Some(prefixes) = &mut dataset.data_path {
        // One text names several, with spaces between them.
        let all = |text: &str| text.split_whitespace().map(&rooted).collect::<Vec<_>>().join(" ");
        each(prefixes, &all);
    }
    dataset.source_exclude.iter_mut().for_each(|pattern| *pattern = rooted(pattern));
    dataset.blend.iter_mut().for_each(root_blend);
    dataset.blend_per_split.iter_mut().flatten().flatten().for_each(root_blend);
    for path in [&mut dataset.source_cache_dir, &mut dataset.path_to_cache].into_iter().flatten() {
        *path = folder.join(&*path);
    }
    if let Some(path) = &mut recipe.tokenizer.tokenizer_model {
        *path = folder.join(&*path);
    }
}

fn each(texts: &mut OneOrMany<String>, change: &dyn Fn(&str) -> String) {
    match texts {
        OneOrMany::One(text) => *text = change(text),
        OneOrMany::Many(texts) => texts.iter_mut().for_each(|text| *text = change(text)),
    }
}

#[cfg(test)]
mod tests {
    use bridge_core::config::Format;
    use bridge_models::registry;

    use super::*;

    fn recipe(text: &str) -> RawConfig {
        RawConfig::from_text(text, Format::Toml, &[], &registry().kinds()).expect("valid")
    }

    #[test]
    fn the_start_is_found_where_the_checkpoint_lies() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let folder = std::fs::canonicalize(folder.path()).expect("a path");
        let checkpoint = folder.join("runs/a/checkpoints/iter_0000001");
        std::fs::create_dir_all(&checkpoint).expect("made");
        let found = |save: &str| start_folder(&recipe(&format!("[checkpoint]\nsave = \"{save}\"")), &checkpoint);
        assert_eq!(found("runs/a/checkpoints"), Some(folder.clone()));
        assert_eq!(found("./a/checkpoints"), Some(folder.join("runs")));
        assert_eq!([found("b/checkpoints"), found("/a/checkpoints"), found("../a/checkpoints")], [None, None, None]);
    }

    #[test]
    fn relative_paths_are_rooted_and_others_stay() {
        let mut raw = recipe(
            "name = \"n\"\n[dataset]\nsource = [\"a b/*.md\", \"~/c\", \"/d\", \"$E/f\"]\nsource_exclude = [\"g\"]\n\
             [tokenizer]\ntokenizer_model = \"t.json\"\n",
        );
        root_paths(&mut raw, Path::new("/r"));
        let source = raw.dataset.source.as_ref().expect("a source").as_slice();
        assert_eq!(source, ["/r/a b/*.md", "~/c", "/d", "$E/f"]);
        assert_eq!(raw.dataset.source_exclude, ["/r/g"]);
        assert_eq!(raw.dataset.source_cache_dir.as_deref(), Some(Path::new("/r/data/n")));
        assert_eq!(raw.tokenizer.tokenizer_model.as_deref(), Some(Path::new("/r/t.json")));
        let mut raw = recipe("[dataset]\ndata_path = \"0.3 a 0.7 /b\"\n");
        root_paths(&mut raw, Path::new("/r"));
        assert_eq!(raw.dataset.data_path.as_ref().expect("prefixes").as_slice(), ["0.3 /r/a 0.7 /b"]);
    }
}

//! The questions of `bridge init` on a terminal.

use std::path::PathBuf;

use dialoguer::{Input, Select};

use super::arguments::{Arguments, seconds};
use super::model::{SIZES, Size};
use super::text;
use crate::failure::Failure;

/// The arguments, completed with the user's answers. Fails if the terminal is closed.
pub fn complete(given: &Arguments) -> Result<Arguments, Failure> {
    let failed = |error: dialoguer::Error| Failure::run(format!("terminal: {error}"));
    let exists =
        |text: &String| if PathBuf::from(text).exists() { Ok(()) } else { Err("there is no such file or folder") };
    let ask = |question: &str| Input::<String>::new().with_prompt(question).validate_with(exists).interact_text();
    let data = PathBuf::from(ask("Text to train on (a file or folder)").map_err(failed)?);
    let (mut model, mut size, mut time) = (given.model.clone(), given.size, given.time);
    let found = text::find(std::slice::from_ref(&data), given.kind)?;
    if found.examples.is_some() && found.model.is_none() && model.is_none() && size.is_none() {
        let question = "These are examples to fine-tune a model on. Which model (its Hugging Face folder)?";
        model = Some(PathBuf::from(ask(question).map_err(failed)?));
    }
    if found.examples.is_none() && model.is_none() && size.is_none() {
        let choices = [
            "a new model, of a size that this machine trains in time",
            "a new model of a size that I choose",
            "a model that I have (a Hugging Face folder)",
        ];
        match Select::new().with_prompt("What is trained?").items(choices).default(0).interact().map_err(failed)? {
            0 => {}
            1 => size = Some(ask_size().map_err(failed)?),
            _ => model = Some(PathBuf::from(ask("Its folder").map_err(failed)?)),
        }
    }
    if time.is_none() && size.is_none() {
        let valid = |text: &String| seconds(text).map(drop);
        let question = Input::<String>::new().with_prompt("How long may it take here?").default("1h".to_owned());
        let text = question.validate_with(valid).interact_text().map_err(failed)?;
        time = seconds(&text).ok();
    }
    Ok(Arguments {
        data: vec![data],
        model,
        size,
        time,
        kind: given.kind,
        name: given.name.clone(),
        output: given.output.clone(),
        device: given.device.clone(),
        force: given.force,
    })
}

fn ask_size() -> dialoguer::Result<Size> {
    let names = SIZES.map(|size| format!("{} ({:.0} M parameters)", size.name, size.parameters(8192) as f64 / 1e6));
    let chosen = Select::new().with_prompt("Which?").items(names).default(1).interact()?;
    Ok(SIZES[chosen])
}

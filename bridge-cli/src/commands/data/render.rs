//! `bridge data render`: conversations as a tokenizer's chat template writes them.

use std::path::PathBuf;

use bridge_data::chat::{ChatError, ChatTemplate, Conversation, EncodedChat};
use bridge_data::sft::records;
use bridge_data::tokenizer::HuggingFaceTokenizer;
use clap::Args;
use serde_json::json;

use super::paint::{Part, paint};
use crate::failure::Failure;
use crate::output::line;

/// The template and the conversations.
#[derive(Debug, Args)]
pub struct Render {
    /// Folder with a tokenizer and its chat template.
    tokenizer: PathBuf,
    /// Conversations: JSON Lines, a JSON list or a table, of objects with `messages` and perhaps
    /// `tools` and other arguments of the template.
    file: PathBuf,
    /// Print a JSON object for each conversation: its ids, and 1 for each that the assistant says;
    /// or why the template refuses it, or what the assistant says cannot be told apart.
    #[arg(long)]
    json: bool,
}

/// Runs the command.
pub fn run(render: &Render) -> Result<u8, Failure> {
    let tokenizer = HuggingFaceTokenizer::load(&render.tokenizer).map_err(Failure::input)?;
    let folder = if render.tokenizer.is_dir() { Some(render.tokenizer.as_path()) } else { render.tokenizer.parent() };
    let template = ChatTemplate::load(folder.unwrap_or(&render.tokenizer)).map_err(Failure::input)?;
    let template = template.ok_or_else(|| {
        let folder = render.tokenizer.display();
        Failure::input(format!("{folder}: there is no chat template (chat_template.jinja or tokenizer_config.json)"))
    })?;
    let failed = |problem: &dyn std::fmt::Display| Failure::input(format!("{}: {problem}", render.file.display()));
    for record in records(render.file.clone()) {
        let (number, value) = record.map_err(Failure::input)?;
        let at_line = |problem: &dyn std::fmt::Display| failed(&format!("line {number}: {problem}"));
        let value = value.map_err(|problem| at_line(&problem))?;
        let conversation = Conversation::from_json(&value).map_err(|problem| at_line(&problem))?;
        let encoded = template.encode(&conversation, &tokenizer);
        line(&match (encoded, render.json) {
            (Ok(EncodedChat { ids, assistant_mask: Ok(mask) }), true) => {
                let mask: Vec<u8> = mask.into_iter().map(u8::from).collect();
                json!({ "ids": ids, "assistant_mask": mask }).to_string()
            }
            // The ids are valid without the mask.
            (Ok(EncodedChat { ids, assistant_mask: Err(reason) }), true) => {
                let error = ChatError::NoMask(reason).to_string();
                json!({ "ids": ids, "assistant_mask": null, "error": error }).to_string()
            }
            (Err(error), true) => json!({ "error": error.to_string() }).to_string(),
            (Ok(EncodedChat { ids, assistant_mask }), false) => {
                let note = assistant_mask
                    .as_ref()
                    .err()
                    .map(|reason| format!("\nerror: {}", ChatError::NoMask(reason.clone())));
                let counts = |at: usize| assistant_mask.as_ref().map_or(true, |mask| mask[at]);
                let parts = |at: usize| if counts(at) { Part::Counted } else { Part::LeftOut };
                paint(&tokenizer, &ids, parts) + &note.unwrap_or_default()
            }
            (Err(error), false) => format!("error: {error}"),
        });
    }
    Ok(0)
}

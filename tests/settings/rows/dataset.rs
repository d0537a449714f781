//! `[dataset]`, `[tokenizer]`: which tokens a run sees, and how they reach it.

use super::super::contexts::{examples, on, text, tiny, tiny_with, watched};
use super::super::row::{AS_IT_IS, Row, row, switch, switch_off};
use super::super::run::{Program, Run};

pub fn rows() -> Vec<Row> {
    [kinds(), loading(), blends(), samples(), fim(), sources(), tokenizers(), tokenizer_files(), finetuning()].concat()
}

const SAMPLES: Program = Program::Samples("train");

/// Text with a tokenizer that was there before.
fn hugging_face() -> Run {
    text().with(&["tokenizer.tokenizer_type=HuggingFaceTokenizer", "tokenizer.tokenizer_model=data/tokenizer"])
}

fn kinds() -> Vec<Row> {
    let cyclic = on(2, &["dataset.dataloader_type=cyclic"]);
    let once =
        tiny_with(&["dataset.data_path=data/few data/fewer", "dataset.split=\"1,0,0\"", "validation.eval_iters=0"]);
    let once = once.with(&["train.train_iters=1", "scheduler.lr_warmup_iters=0"]);
    let again = once.with(&["train.train_iters=2", "train.global_batch_size=2"]);
    vec![
        row("dataset.kind", &tiny(), &["gpt", "mock & dataset.data_path=null & dataset.split=null"])
            .moves("loss_1 files"),
        row("dataset.dataloader_type", &again, &["single", "batch"]).moves("exit").holds(1, "exit", "0"),
        row("dataset.dataloader_type", &tiny(), &["single", "cyclic"]).moves("loss_1"),
        row("dataset.dataloader_type", &tiny(), &["single", "external"]).moves("exit").holds(
            1,
            "stderr",
            "needs a dataset with its own loader",
        ),
        row("dataset.data_sharding", &cyclic, &[AS_IT_IS, "false"]).moves("loss_1"),
        row("dataset.drop_last", &once, &[AS_IT_IS, "false"]).moves("exit").holds(1, "exit", "0"),
        row("dataset.seq_length", &tiny(), &[AS_IT_IS, "64"]).moves("exit"),
        row("dataset.random_seed", &tiny(), &[AS_IT_IS, "7"]).moves("loss_1"),
    ]
}

fn loading() -> Vec<Row> {
    let members = "dataset.data_path=".to_owned() + &"1 data/tokens ".repeat(8);
    // Many samples, so that building takes long enough to be seen.
    let built = watched(&tiny()).with(&[
        &members,
        "dataset.num_workers=0",
        "train.train_iters=200000",
        "train.exit_interval=1",
    ]);
    vec![
        row("dataset.num_workers", &watched(&tiny()).with(&["train.train_iters=2500"]), &[AS_IT_IS, "0", "5"])
            .moves("threads")
            .holds(2, "threads", "loader-4"),
        row("dataset.mmap_bin_files", &watched(&tiny()), &[AS_IT_IS, "false"]).moves("maps"),
        row("dataset.num_dataset_builder_threads", &built, &[AS_IT_IS, "8"]).moves("threads"),
        row("dataset.path_to_cache", &tiny(), &[AS_IT_IS, "indices"]).moves("files"),
    ]
}

fn blends() -> Vec<Row> {
    let samples = tiny().by(SAMPLES);
    let blend = samples.with(&["dataset.data_path=null"]);
    let per_split = blend.with(&["dataset.split=null"]);
    // A member must provide 100 samples and the surplus; its epoch has fewer than 190.
    let weighted = samples.with(&["dataset.data_path=0.5 data/tokens 0.5 data/more", "train.train_iters=50"]);
    vec![
        row("dataset.data_path", &samples, &["data/tokens", "data/more", "0.3 data/tokens 0.7 data/more"])
            .moves("output"),
        row(
            "dataset.blend",
            &blend,
            &["[['data/tokens']]", "[['data/more']]", "[['data/tokens', 'data/more'], [0.3, 0.7]]"],
        )
        .moves("output"),
        row(
            "dataset.blend_per_split",
            &per_split,
            &["[[['data/tokens']], [['data/more']], 'null']", "[[['data/more']], [['data/tokens']], 'null']"],
        )
        .moves("output"),
        row("dataset.split", &samples, &["8,1,1", "2,7,1"]).moves("output"),
        row("dataset.mid_level_dataset_surplus", &weighted, &[AS_IT_IS, "0.9"]).moves("indices output"),
    ]
}

fn samples() -> Vec<Row> {
    let padded = hugging_face();
    vec![
        switch("dataset.allow_ambiguous_pad_tokens", &padded).moves("params"),
        switch("dataset.reset_position_ids", &tiny()).moves("loss_1"),
        switch("dataset.reset_attention_mask", &tiny()).moves("loss_1"),
        switch("dataset.eod_mask_loss", &tiny()).moves("loss_1"),
        row(
            "dataset.drop_last_partial_validation_sequence",
            &tiny().with(&["validation.full_validation=true"]),
            &[AS_IT_IS, "false"],
        )
        .moves("valid.loss valid.num_samples"),
        row("dataset.add_extra_token_to_sequence", &tiny(), &[AS_IT_IS, "false"]).moves("loss_1"),
    ]
}

fn fim() -> Vec<Row> {
    let fim = hugging_face().by(SAMPLES).with(&[
        "dataset.kind=fim",
        "dataset.fim_rate=0.9",
        "dataset.fim_spm_rate=0.5",
        "dataset.fim_extra_tokens={prefix='<pre>', middle='<mid>', suffix='<suf>', pad='<|endoftext|>', eod='<|endoftext|>'}",
    ]);
    let split = fim.with(&["dataset.fim_split_sample=river", "dataset.fim_fragment_rate=0.9"]);
    let swapped = "{prefix='<mid>', middle='<pre>', suffix='<suf>', pad='<|endoftext|>', eod='<|endoftext|>'}";
    vec![
        row(
            "dataset.kind",
            &fim,
            &[AS_IT_IS, "gpt & dataset.fim_rate=null & dataset.fim_spm_rate=null & dataset.fim_extra_tokens=null"],
        )
        .moves("output"),
        row("dataset.fim_rate", &fim, &[AS_IT_IS, "0"]).moves("output"),
        row("dataset.fim_spm_rate", &fim, &[AS_IT_IS, "1"]).moves("output"),
        row("dataset.fim_extra_tokens", &fim, &[AS_IT_IS, swapped]).moves("output"),
        row("dataset.fim_split_sample", &fim, &[AS_IT_IS, "river & dataset.fim_fragment_rate=0.9"]).moves("output"),
        row("dataset.fim_fragment_rate", &split, &[AS_IT_IS, "0.1"]).moves("output"),
        row("dataset.fim_no_prefix", &split, &[AS_IT_IS, "' '"]).moves("output"),
    ]
}

/// Examples of a Rust file in the place of those of the folder.
const DOCUMENTED: &str = "rust-docs & dataset.dataset_root=null & dataset.source=data/code.rs & dataset.source_cache_dir=made & dataset.split=\"1,0,0\"";

fn sources() -> Vec<Row> {
    let samples = text().by(SAMPLES);
    let lines = samples.with(&["dataset.source=data/lines.jsonl"]);
    vec![
        row(
            "dataset.source",
            &samples,
            &["data/docs/*.txt", "['data/docs/1.txt', 'data/docs/[2-9].txt', 'data/docs/0.txt']"],
        )
        .moves("output"),
        row("dataset.source_format", &lines, &["jsonl", "text & dataset.split=\"1,0,0\""]).moves("output"),
        row("dataset.source_format", &examples().by(SAMPLES), &[AS_IT_IS, DOCUMENTED]).moves("output"),
        row("dataset.source_jsonl_key", &lines, &[AS_IT_IS, "other"]).moves("output"),
        row("dataset.source_exclude", &samples, &[AS_IT_IS, "['data/docs/3.txt']"]).moves("output"),
        row("dataset.source_max_bytes", &samples, &[AS_IT_IS, "6kB & dataset.split=\"2,1,1\""]).moves("output"),
        row("dataset.source_piece_bytes", &samples, &[AS_IT_IS, "500"]).moves("output"),
        row("dataset.source_shuffle_seed", &samples, &[AS_IT_IS, "3"]).moves("output"),
        row("dataset.source_cache_dir", &text(), &[AS_IT_IS, "elsewhere"]).moves("console files"),
        row("dataset.append_eod", &samples, &[AS_IT_IS, "false"]).moves("output"),
    ]
}

/// The null tokenizer, and upstream's that are not built.
const NOT_BUILT: [&str; 3] = ["NullTokenizer", "MultimodalTokenizer", "NullMultimodalTokenizer"];

/// Files of other programs, which become tokenizers.
const OF_FILES: [&str; 8] = [
    "ByteLevelBPE",
    "GPT2BPETokenizer & tokenizer.vocab_file=data/tokenizers/vocab.json & tokenizer.merge_file=data/tokenizers/few_merges.txt",
    "BertWordPieceLowerCase & tokenizer.vocab_file=data/tokenizers/vocab.txt",
    "SentencePieceTokenizer & tokenizer.tokenizer_model=data/tokenizers/unigram.model",
    "GPTSentencePieceTokenizer & tokenizer.tokenizer_model=data/tokenizers/bpe.model",
    "Llama2Tokenizer & tokenizer.tokenizer_model=data/tokenizers/llama.model",
    "TikTokenizer & tokenizer.tokenizer_model=data/tokenizers/ranks.json & tokenizer.tiktoken_pattern=v1",
    "SFTTokenizer & tokenizer.tokenizer_model=data/tokenizer & tokenizer.tokenizer_prompt_format=default",
];

fn tokenizer_files() -> Vec<Row> {
    let file = text().by(SAMPLES).with(&["model.vocab_size=1500"]);
    let of = |place: usize| {
        let mut parts = OF_FILES[place].split(" & ");
        let kind = format!("tokenizer.tokenizer_type={}", parts.next().unwrap_or_default());
        let overrides: Vec<&str> = std::iter::once(kind.as_str()).chain(parts).collect();
        file.with(&overrides)
    };
    let (gpt2, words, pieces) = (of(1), of(2), of(5));
    let ranks = of(6).with(&["dataset.source=data/camel.txt", "tokenizer.tiktoken_num_special_tokens=10"]);
    let cased = words.with(&["dataset.source=data/camel.txt"]);
    let chats = examples().by(SAMPLES).with(&["dataset.dataset_root=data/chats"]);
    let format = ["tokenizer.tokenizer_type=SFTTokenizer", "tokenizer.tokenizer_prompt_format=identity"];
    vec![
        row("tokenizer.tokenizer_type", &file, &OF_FILES).moves("output"),
        row("tokenizer.tokenizer_type", &cased, &["BertWordPieceLowerCase", "BertWordPieceCase"]).moves("output"),
        row("tokenizer.vocab_file", &words, &["data/tokenizers/vocab.txt", "data/tokenizers/words.txt"])
            .moves("output"),
        row("tokenizer.merge_file", &gpt2, &["data/tokenizers/merges.txt", "data/tokenizers/few_merges.txt"])
            .moves("output"),
        row("tokenizer.vocab_extra_ids", &of(5).by(Program::Train), &[AS_IT_IS, "2000"]).moves("exit"),
        row("tokenizer.chat_template", &chats, &[AS_IT_IS, "data/other.jinja"]).moves("output"),
        switch("tokenizer.force_system_message", &chats).moves("output"),
        row("tokenizer.tokenizer_prompt_format", &chats.with(&format), &["identity", "default"]).moves("output"),
        row("tokenizer.tiktoken_pattern", &ranks, &["v1", "v2"]).moves("output"),
        row("tokenizer.tiktoken_num_special_tokens", &ranks, &["10", "20"]).moves("output"),
        row("tokenizer.tiktoken_special_tokens", &ranks, &[AS_IT_IS, "['a', '</s>']"]).moves("output"),
        row("tokenizer.hf_tokenizer_kwargs", &hugging_face().by(SAMPLES), &[AS_IT_IS, "{eos_token = '<pre>'}"])
            .moves("output"),
        row("tokenizer.sp_tokenizer_kwargs", &pieces, &[AS_IT_IS, "{eos_token = '<s>'}"]).moves("output"),
    ]
}

fn tokenizers() -> Vec<Row> {
    let model = "HuggingFaceTokenizer & tokenizer.tokenizer_model=data/tokenizer & tokenizer.bpe_vocab_size=null";
    let samples = text().by(SAMPLES).with(&["tokenizer.bpe_vocab_size=280"]);
    let loaded = text().by(SAMPLES).with(&["tokenizer.tokenizer_type=HuggingFaceTokenizer"]);
    let numbers = tiny_with(&["model.vocab_size=null"]);
    vec![
        row("tokenizer.tokenizer_type", &samples, &["ByteLevelBPE", model]).moves("output"),
        row("tokenizer.tokenizer_type", &tiny(), &["NullTokenizer", "ByteLevelBPE & tokenizer.vocab_size=null"])
            .moves("exit"),
        row("tokenizer.tokenizer_type", &tiny(), &NOT_BUILT).moves("exit").holds(1, "stderr", "not implemented yet"),
        row("tokenizer.tokenizer_model", &loaded, &["data/tokenizer", "data/tokenizer/nothing"]).moves("exit"),
        row("tokenizer.vocab_size", &numbers, &[AS_IT_IS, "600"]).moves("loss_1 flops shapes slices"),
        row("tokenizer.special_tokens", &samples, &[AS_IT_IS, "['river']"]).moves("output"),
        row("tokenizer.bpe_vocab_size", &samples, &[AS_IT_IS, "290"]).moves("output"),
        row("tokenizer.bpe_train_max_bytes", &samples, &[AS_IT_IS, "1500"]).moves("output"),
    ]
}

fn finetuning() -> Vec<Row> {
    let samples = examples().by(SAMPLES);
    let packed = samples.with(&["dataset.packed_sequence_specs.packed_sequence_size=32"]);
    let named = samples.with(&["dataset.dataset_kwargs.prompt_template=\"{other} - {input} {output}\""]);
    let long = named.with(&["dataset.dataset_root=data/long_examples"]);
    let chat = samples.with(&["dataset.dataset_root=data/chats"]);
    let kwargs = |row: Row| row.moves("output");
    vec![
        row("dataset.dataset_root", &samples, &["data/examples", "data/long_examples"]).moves("output"),
        row("dataset.max_train_samples", &samples, &[AS_IT_IS, "3"]).moves("output"),
        switch_off("dataset.do_validation", &examples().by(Program::Samples("valid"))).moves("exit"),
        switch_off("dataset.do_test", &examples().by(Program::Samples("test"))).moves("exit"),
        row("dataset.packed_sequence_specs.packed_sequence_size", &packed, &["32", "24"]).moves("output"),
        row("dataset.packed_sequence_specs.num_tokenizer_workers", &packed, &[AS_IT_IS, "0"]).moves("exit"),
        row("dataset.packed_sequence_specs.pad_seq_to_mult", &packed, &[AS_IT_IS, "4"]).moves("output"),
        row("dataset.packed_sequence_specs.packing_algorithm", &packed, &["first_fit_decreasing", "first_fit_shuffle"])
            .moves("output"),
        kwargs(row("dataset.dataset_kwargs.add_bos", &samples, &["false", "true"])),
        // Padding is the same token: that it is predicted makes the difference.
        switch_off("dataset.dataset_kwargs.add_eos", &examples()).moves("loss_1"),
        kwargs(switch("dataset.dataset_kwargs.add_sep", &samples)),
        kwargs(row("dataset.dataset_kwargs.label_key", &samples, &["output", "other"])),
        switch_off("dataset.dataset_kwargs.answer_only_loss", &examples()).moves("loss_1"),
        kwargs(row("dataset.dataset_kwargs.truncation_field", &long, &["input", "other"])),
        kwargs(row("dataset.dataset_kwargs.truncation_method", &long, &["right", "left"])),
        kwargs(row("dataset.dataset_kwargs.prompt_template", &samples, &[AS_IT_IS, "\"{input} | {output}\""])),
        kwargs(switch("dataset.dataset_kwargs.pad_to_max_length", &samples)),
        kwargs(row("dataset.dataset_kwargs.pad_seq_length_to_mult", &samples, &[AS_IT_IS, "5"])),
        kwargs(row("dataset.dataset_kwargs.tokens_to_generate", &long, &[AS_IT_IS, "25"])),
        kwargs(row("dataset.dataset_kwargs.chat", &samples, &["false", "true"])),
        row("dataset.dataset_kwargs.chat", &chat, &["true", "false"]).moves("exit"),
        row(
            "dataset.dataset_kwargs.on_bad_line",
            &samples.with(&["dataset.dataset_root=data/bad_examples"]),
            &["skip", "error"],
        )
        .moves("exit"),
        kwargs(switch("dataset.dataset_kwargs.pack_on_the_fly", &samples)),
    ]
}

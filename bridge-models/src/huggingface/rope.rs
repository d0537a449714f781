//! Rotary settings of `config.json`, in the forms of all versions of transformers: a table
//! `rope_parameters`, or `rope_theta` and `partial_rotary_factor` beside a table `rope_scaling`.

use serde_json::{Map, Value, json};

use super::error::HfError;
use super::fields::Fields;
use super::recipe_keys;
use super::settings::KeyGroup;
use super::windows::LAYER_TYPES;
use crate::decoder::{DecoderConfig, PositionEmbedding, RopeConfig, RopeScaling, YarnConfig};

/// Key of the context length of the unscaled model.
pub(crate) const ORIGINAL_LENGTH: &str = "original_max_position_embeddings";

/// Defaults of a family's rotary settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RopeForm {
    /// Base of the frequencies.
    pub theta: f64,
    /// Names of the keys beside the table for the base and the share of the head.
    pub beside: [&'static str; 2],
    /// Share of the head that is rotated; `None` if the family always rotates whole heads and
    /// ignores the keys.
    pub percent: Option<f64>,
    /// Place of the context length of the unscaled model.
    pub original_length: OriginalLength,
    /// True if `alpha` in a table of type `dynamic` is a growth of the base.
    pub ntk_alpha: bool,
    /// True if neighbouring elements are rotated together.
    pub interleaved: bool,
    /// True if elements are rotated the other way round.
    pub reversed: bool,
}

/// Place of `original_max_position_embeddings`, the context length of the unscaled model in tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OriginalLength {
    /// Beside the table, else in the table; without both it is `max_position_embeddings`.
    Beside,
    /// Beside the table, with this default; a value in the table is ignored.
    BesideOr(usize),
    /// In the table; a value beside the table is ignored.
    InTable,
}

impl RopeForm {
    /// The form of most families.
    pub const USUAL: Self = Self {
        theta: 10_000.0,
        beside: ["rope_theta", "partial_rotary_factor"],
        percent: None,
        original_length: OriginalLength::Beside,
        ntk_alpha: false,
        interleaved: false,
        reversed: false,
    };
}

impl KeyGroup for RopeForm {
    fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        read(fields, config, *self)
    }

    fn write(&self, config: &DecoderConfig, settings: &mut Map<String, Value>) {
        match self.percent {
            Some(_) => write_with_percent(config, settings),
            None => write(config, settings),
        }
    }
}

/// Sets the positions of a model whose layers all rotate alike. Head size and longest sequence are
/// set before.
pub(crate) fn read(fields: &Fields, config: &mut DecoderConfig, form: RopeForm) -> Result<(), HfError> {
    let rope = of_all_layers(fields, config.max_position_embeddings, form)?;
    check_pairs(fields, config, &rope, form)?;
    config.position_embedding = PositionEmbedding::Rope(rope);
    Ok(())
}

/// [`read`] where files without a table have the settings of `usual`. To transformers an empty old
/// table is absent, and an empty new one has frequencies that are not scaled. Returns the table.
pub(crate) fn read_or<'a>(
    fields: &Fields<'a>,
    config: &mut DecoderConfig,
    form: RopeForm,
    usual: &'a Value,
) -> Result<Option<Fields<'a>>, HfError> {
    let found = table(fields)?;
    if found.is_some() || fields.get("rope_parameters").is_some() {
        read(fields, config, form)?;
        return Ok(found);
    }
    let usual = usual.as_object().map(|usual| Fields::from_table("rope_parameters.", usual));
    let rope = read_table(fields, usual.as_ref(), config.max_position_embeddings, form)?;
    check_pairs(fields, config, &rope, form)?;
    config.position_embedding = PositionEmbedding::Rope(rope);
    Ok(usual)
}

/// The table of rotary settings. transformers gives the old one precedence where a file has both,
/// unless it is empty.
pub(crate) fn table<'a>(fields: &Fields<'a>) -> Result<Option<Fields<'a>>, HfError> {
    let old = fields.filled_table("rope_scaling", "rope_scaling.")?;
    old.map_or_else(|| fields.filled_table("rope_parameters", "rope_parameters."), |old| Ok(Some(old)))
}

/// The rotary settings of a model whose layers all rotate alike.
pub(crate) fn of_all_layers(fields: &Fields, max_positions: usize, form: RopeForm) -> Result<RopeConfig, HfError> {
    let table = table(fields)?;
    if let Some(table) = &table {
        for layers in LAYER_TYPES {
            let expected = "one table for all layers: this family rotates them alike";
            table.require(table.get(layers).is_none(), layers, "a table", expected)?;
        }
    }
    let rope = read_table(fields, table.as_ref(), max_positions, form)?;
    // A table beside the old one is read if it says the same.
    let has_old = fields.filled_table("rope_scaling", "rope_scaling.")?.is_some();
    let beside = fields.peek("rope_parameters").and_then(Value::as_object).filter(|_| has_old);
    let beside = beside.map(|table| read_table(fields, Some(&Fields::from_table("", table)), max_positions, form));
    if beside.is_some_and(|beside| beside.is_ok_and(|beside| beside == rope)) {
        fields.ask("rope_parameters");
    }
    Ok(rope)
}

/// Refuses heads of which no elements or an odd number of elements are rotated.
pub(crate) fn check_pairs(
    fields: &Fields,
    config: &DecoderConfig,
    rope: &RopeConfig,
    form: RopeForm,
) -> Result<(), HfError> {
    let (head, percent, rotated) = (config.kv_channels, rope.percent, rope.rotary_size(config.kv_channels));
    if percent > 0.0 && percent <= 1.0 && rotated > 0 && rotated.is_multiple_of(2) {
        return Ok(());
    }
    if percent != 1.0 {
        let beside = form.beside[1];
        let key = recipe_keys::first_in_file(fields, &["*.partial_rotary_factor", beside]);
        let expected = format!("a share in (0, 1] that rotates an even number of a head's {head} elements");
        return Err(fields.error(
            key.as_deref().unwrap_or(beside),
            &format!("{percent} ({rotated} elements)"),
            &expected,
        ));
    }
    if fields.get("head_dim").is_some() {
        return Err(fields.error("head_dim", &head.to_string(), "an even number: elements are rotated in pairs"));
    }
    let expected = format!(
        "an even multiple of num_attention_heads ({}): elements of a head are rotated in pairs",
        config.num_attention_heads
    );
    Err(fields.error("hidden_size", &config.hidden_size.to_string(), &expected))
}

/// The rotary settings of a table. Settings that are absent in the table are read from `fields`.
pub(crate) fn read_table(
    fields: &Fields,
    table: Option<&Fields>,
    max_positions: usize,
    form: RopeForm,
) -> Result<RopeConfig, HfError> {
    let number = |key, beside| match table.map_or(Ok(None), |table| table.number(key))? {
        Some(number) => {
            // A key that occurs twice is read once; a different value beside the table stays
            // unread, and is reported.
            if fields.peek(beside).and_then(Value::as_f64) == Some(number) {
                fields.ask(beside);
            }
            Ok(Some(number))
        }
        None => fields.number(beside),
    };
    let percent = number("partial_rotary_factor", form.beside[1])?;
    // To transformers null is not absence: it stands for whole heads, not for the family's share.
    let is_null = percent.is_none() && fields.peek(form.beside[1]).is_some_and(Value::is_null);
    let is_usual = !is_null || form.percent.is_none_or(|usual| usual == 1.0);
    fields.require(is_usual, form.beside[1], "null", "a share in (0, 1], or no such key")?;
    let original_length = match form.original_length {
        OriginalLength::Beside => fields.size(ORIGINAL_LENGTH)?,
        OriginalLength::BesideOr(usual) => Some(fields.size(ORIGINAL_LENGTH)?.unwrap_or(usual)),
        OriginalLength::InTable => {
            if table.is_some_and(|table| table.peek(ORIGINAL_LENGTH) == fields.peek(ORIGINAL_LENGTH)) {
                fields.ask(ORIGINAL_LENGTH);
            }
            None
        }
    };
    let scaling = match table {
        Some(table) => scaling(table, original_length, max_positions, form.ntk_alpha)?,
        None => None,
    };
    // Frequencies that are scaled are as many as the key says, and fit no whole head.
    let unrotated = "1.0: this family rotates whole heads";
    let is_known = form.percent.is_some()
        || matches!(scaling, Some(RopeScaling::Proportional { .. }))
        || scaling.is_none()
        || percent.is_none_or(|percent| percent == 1.0);
    let place = table.filter(|table| table.get("partial_rotary_factor").is_some()).unwrap_or(fields);
    place.require(is_known, "partial_rotary_factor", &percent.unwrap_or(1.0).to_string(), unrotated)?;
    Ok(RopeConfig {
        base: number("rope_theta", form.beside[0])?.unwrap_or(form.theta),
        percent: form.percent.map_or(1.0, |usual| percent.unwrap_or(usual)),
        scaling,
        interleaved: form.interleaved,
        reversed: form.reversed,
        ..RopeConfig::neutral()
    })
}

/// Rotary settings of a family that names the windowed layers and rotates them by frequencies of
/// their own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByLayerType {
    /// Form of the settings of full layers.
    pub full: RopeForm,
    /// Base of the frequencies in windowed layers.
    pub local_theta: f64,
    /// Key of this base beside the tables, if the family has one.
    pub local_key: Option<&'static str>,
}

impl KeyGroup for ByLayerType {
    fn read(&self, fields: &Fields, config: &mut DecoderConfig) -> Result<(), HfError> {
        read_by_layer_type(fields, config, *self)
    }

    fn write(&self, config: &DecoderConfig, settings: &mut Map<String, Value>) {
        write_by_layer_type(config, settings, *self);
    }
}

/// Reads a table for each type of layer in `rope_parameters`, or `rope_theta`, `rope_scaling` and
/// the base of windowed layers beside them. Windows are set before.
pub(crate) fn read_by_layer_type(
    fields: &Fields,
    config: &mut DecoderConfig,
    form: ByLayerType,
) -> Result<(), HfError> {
    let tables = fields.filled_table("rope_parameters", "rope_parameters.")?;
    let of_type = |index: usize, prefix| tables.map_or(Ok(None), |tables| tables.table(LAYER_TYPES[index], prefix));
    let full = of_type(0, "rope_parameters.full_attention.")?;
    let windowed = of_type(1, "rope_parameters.sliding_attention.")?;
    let is_known = tables.is_none() || full.is_some() || windowed.is_some();
    let expected = format!("a table {} and a table {}", LAYER_TYPES[0], LAYER_TYPES[1]);
    fields.require(is_known, "rope_parameters", "another table", &expected)?;
    // transformers puts the old table over the new one. Where there is no new one, it takes one
    // with a `rope_type` of its own: a `type` in the old table then says nothing.
    let usual = ("rope_type".to_owned(), json!("default"));
    let mut merged = full.map_or_else(|| Map::from_iter([usual]), |full| full.entries().collect());
    let scaling = fields.filled_table("rope_scaling", "rope_scaling.")?;
    merged.extend(scaling.iter().flat_map(Fields::entries));
    let place = if scaling.is_some() { "rope_scaling." } else { "rope_parameters.full_attention." };
    let merged = Fields::from_table(place, &merged);
    let mut rope = read_table(fields, Some(&merged), config.max_position_embeddings, form.full)?;
    if let Some(RopeScaling::Yarn(yarn)) = &mut rope.scaling {
        // transformers looks for it beside the tables of the types of layers, where no file has it.
        tables.map_or(Ok(()), |tables| tables.only("truncate", &json!(true)))?;
        yarn.truncate = true;
    }
    check_pairs(fields, config, &rope, form.full)?;
    let beside = form.local_key.map_or(Ok(None), |key| fields.number(key))?.unwrap_or(form.local_theta);
    let local = match &windowed {
        Some(table) => {
            let key = if table.get("rope_type").is_some() { "rope_type" } else { "type" };
            table.only(key, &json!("default"))?;
            table.number("rope_theta")?.unwrap_or(beside)
        }
        None => beside,
    };
    if config.window_size.is_some() {
        let share = windowed.as_ref().map_or(Ok(None), |table| table.number("partial_rotary_factor"))?;
        let share = form.full.percent.filter(|_| windowed.is_some()).map(|usual| share.unwrap_or(usual));
        rope.windowed_percent = share.filter(|share| *share != rope.percent);
        rope.windowed_base = Some(local);
        check_pairs(fields, &config.of_windowed(), &rope.of_windowed(), form.full)?;
    }
    config.position_embedding = PositionEmbedding::Rope(rope);
    Ok(())
}

/// Writes a table for each type of layer, and the separate keys that transformers 4 reads.
pub(crate) fn write_by_layer_type(config: &DecoderConfig, settings: &mut Map<String, Value>, form: ByLayerType) {
    write(config, settings);
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { return };
    let local = rope.windowed_base.unwrap_or(form.local_theta);
    let windowed = RopeConfig { windowed_base: Some(local), ..rope.clone() }.of_windowed();
    let [full, windowed] = [rope, &windowed].map(|rope| {
        let mut table = parameters(rope);
        if form.full.percent.is_some() {
            table["partial_rotary_factor"] = json!(rope.percent);
        }
        table
    });
    settings.insert("rope_parameters".into(), json!({ LAYER_TYPES[0]: full, LAYER_TYPES[1]: windowed }));
    if let Some(key) = form.local_key {
        settings.insert(key.into(), json!(local));
    }
}

/// [`write_by_layer_type`] without keys beside the tables: transformers takes them for settings of
/// all layers, or refuses them.
pub(crate) fn write_tables(config: &DecoderConfig, settings: &mut Map<String, Value>, form: ByLayerType) {
    write_by_layer_type(config, settings, form);
    settings.retain(|key, _| !["rope_scaling", "rope_theta"].contains(&key.as_str()));
}

/// Writes both forms: transformers 5 reads the table, transformers 4 the separate keys.
pub(crate) fn write(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { return };
    let table = parameters(rope);
    let mut old = if rope.scaling.is_some() { table.clone() } else { Value::Null };
    if let Some(old) = old.as_object_mut() {
        // transformers 4 warns of keys that it does not know in this table.
        for key in ["rope_theta", "partial_rotary_factor"] {
            old.remove(key);
        }
    }
    if let Some(RopeScaling::LongRope { original_max_position_embeddings: length, .. }) = &rope.scaling {
        // transformers 4 warns without a factor. It ignores an original length in the table, and
        // warns of one beside the table.
        let positions = config.max_position_embeddings;
        old["factor"] = json!((positions as f64 / *length as f64).max(1.0));
        if *length != positions {
            settings.insert(ORIGINAL_LENGTH.into(), json!(length));
        }
    }
    settings.insert("rope_scaling".into(), old);
    settings.insert("rope_parameters".into(), table);
    settings.insert("rope_theta".into(), json!(rope.base));
    if rope.percent != 1.0 {
        settings.insert("partial_rotary_factor".into(), json!(rope.percent));
    }
}

/// Keys of rotary tables that say which axis of an image's positions rotates an element. All axes
/// are the same for text.
const AXES: [&str; 2] = ["mrope_section", "mrope_interleaved"];

/// Keeps the axes of positions in `settings`, which are written over `original`.
pub(crate) fn keep_axes(original: &Map<String, Value>, settings: &mut Map<String, Value>) {
    let tables = ["rope_scaling", "rope_parameters"];
    let axes = |name: &str| -> Map<String, Value> {
        let table = original.get(name).and_then(Value::as_object);
        let known = AXES.iter().filter_map(|key| Some(((*key).to_owned(), table?.get(*key)?.clone())));
        known.collect()
    };
    let [beside, inside] = tables.map(axes);
    let all: Map<String, Value> = inside.into_iter().chain(beside.clone()).collect();
    if let Some(table) = settings.get_mut("rope_parameters").and_then(Value::as_object_mut) {
        table.extend(all);
    }
    if beside.is_empty() {
        return;
    }
    match settings.get_mut("rope_scaling").and_then(Value::as_object_mut) {
        Some(table) => table.extend(beside),
        None => {
            let names = ["type", "rope_type"].map(|key| (key, original["rope_scaling"].get(key)));
            let unscaled = |name: &Value| ["default", "mrope"].iter().any(|known| name == known);
            let names =
                names.into_iter().filter_map(|(key, name)| Some((key.to_owned(), name.filter(|n| unscaled(n))?)));
            let mut table: Map<String, Value> = names.map(|(key, name)| (key, name.clone())).collect();
            if table.is_empty() {
                table.insert("rope_type".into(), json!("default"));
            }
            table.extend(beside);
            settings.insert("rope_scaling".into(), Value::Object(table));
        }
    }
}

/// [`write`], for families in which no key means another share than the whole head.
pub(crate) fn write_with_percent(config: &DecoderConfig, settings: &mut Map<String, Value>) {
    write(config, settings);
    let PositionEmbedding::Rope(rope) = &config.position_embedding else { return };
    settings.insert("partial_rotary_factor".into(), json!(rope.percent));
    settings["rope_parameters"]["partial_rotary_factor"] = json!(rope.percent);
}

/// The table `rope_parameters` of these settings.
pub(crate) fn parameters(rope: &RopeConfig) -> Value {
    let mut table = match &rope.scaling {
        None => json!({ "rope_type": "default" }),
        Some(RopeScaling::Linear { factor }) => json!({ "rope_type": "linear", "factor": factor }),
        Some(RopeScaling::Ntk { alpha }) => json!({ "rope_type": "dynamic", "alpha": alpha, "factor": 1.0 }),
        Some(RopeScaling::Proportional { share }) => {
            json!({ "rope_type": "proportional", "partial_rotary_factor": share })
        }
        Some(RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position_embeddings }) => {
            json!({
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": low_freq_factor,
                "high_freq_factor": high_freq_factor,
                "original_max_position_embeddings": original_max_position_embeddings,
            })
        }
        Some(RopeScaling::Yarn(yarn)) => {
            let mut table = json!({
                "rope_type": "yarn",
                "factor": yarn.factor,
                "original_max_position_embeddings": yarn.original_max_position_embeddings,
                "beta_fast": yarn.beta_fast,
                "beta_slow": yarn.beta_slow,
                "truncate": yarn.truncate,
            });
            let optional = [
                ("mscale", yarn.mscale),
                ("mscale_all_dim", yarn.mscale_all_dim),
                ("attention_factor", yarn.attention_factor),
            ];
            for (key, value) in optional {
                if let Some(value) = value {
                    table[key] = json!(value);
                }
            }
            table
        }
        Some(RopeScaling::LongRope {
            short_factor,
            long_factor,
            original_max_position_embeddings,
            attention_factor,
        }) => {
            json!({
                "rope_type": "longrope",
                "short_factor": short_factor,
                "long_factor": long_factor,
                "original_max_position_embeddings": original_max_position_embeddings,
                "attention_factor": attention_factor,
            })
        }
    };
    table["rope_theta"] = json!(rope.base);
    if rope.percent != 1.0 {
        table["partial_rotary_factor"] = json!(rope.percent);
    }
    table
}

/// Scaling of a table. `original_length` is the value beside the table, to which transformers gives
/// precedence.
fn scaling(
    table: &Fields,
    original_length: Option<usize>,
    max_positions: usize,
    ntk_alpha: bool,
) -> Result<Option<RopeScaling>, HfError> {
    // Zero is as good as nothing to transformers.
    let alpha = if ntk_alpha { table.number("alpha")?.filter(|alpha| *alpha != 0.0) } else { None };
    let key = if table.get("rope_type").is_some() { "rope_type" } else { "type" };
    let length = || -> Result<usize, HfError> {
        let stored = table.size(ORIGINAL_LENGTH)?;
        Ok(original_length.or(stored).unwrap_or(max_positions))
    };
    match table.string(key)? {
        // Positions with several axes, which are the same for text.
        None | Some("default" | "mrope") => Ok(None),
        Some("linear") => {
            let factor = table.required_number("factor")?;
            Ok(Some(RopeScaling::Linear { factor }).filter(|_| factor != 1.0))
        }
        Some("proportional") => {
            table.only("factor", &json!(1.0))?;
            let share = table.number("partial_rotary_factor")?.unwrap_or(1.0);
            Ok(Some(RopeScaling::Proportional { share }).filter(|_| share != 1.0))
        }
        Some("llama3") => {
            let factor = table.required_number("factor")?;
            let scaling = RopeScaling::Llama3 {
                factor,
                low_freq_factor: table.required_number("low_freq_factor")?,
                high_freq_factor: table.required_number("high_freq_factor")?,
                original_max_position_embeddings: length()?,
            };
            Ok(Some(scaling).filter(|_| factor != 1.0))
        }
        // The second name is that of the first files of Sarvam 105B.
        Some("yarn" | "deepseek_yarn") => yarn(table, length()?, max_positions).map(Some),
        Some("longrope" | "su") => longrope(table, length()?, max_positions).map(Some),
        Some("dynamic") if alpha.is_some() => Ok(alpha.map(|alpha| RopeScaling::Ntk { alpha })),
        Some("dynamic") => {
            let reason = "default, which is the same up to max_position_embeddings: beyond it dynamic frequencies change with the length \
                          of each sequence, which is not implemented";
            Err(table.error(key, "\"dynamic\"", reason))
        }
        Some(other) => {
            let known = "one of default, linear, llama3, yarn, longrope: others are not implemented";
            Err(table.error(key, &format!("\"{other}\""), known))
        }
    }
}

fn yarn(table: &Fields, length: usize, max_positions: usize) -> Result<RopeScaling, HfError> {
    // Zero is as good as nothing to transformers.
    let optional = |key| Ok::<_, HfError>(table.number(key)?.filter(|number| *number != 0.0));
    let mscale_all_dim = optional("mscale_all_dim")?;
    let attention_factor = table.number("attention_factor")?;
    Ok(RopeScaling::Yarn(YarnConfig {
        factor: table.number("factor")?.unwrap_or(max_positions as f64 / length as f64),
        original_max_position_embeddings: length,
        beta_fast: optional("beta_fast")?.unwrap_or(YarnConfig::BETA_FAST),
        beta_slow: optional("beta_slow")?.unwrap_or(YarnConfig::BETA_SLOW),
        // Alone it says nothing, and nothing beside the factor that would follow from it.
        mscale: optional("mscale")?.filter(|_| mscale_all_dim.is_some() && attention_factor.is_none()),
        mscale_all_dim,
        attention_factor,
        truncate: table.bool("truncate")?.unwrap_or(true),
    }))
}

/// Default attention factor of LongRoPE for a context extended from `length` to `max_positions`
/// tokens.
pub(crate) fn usual_longrope_factor(length: usize, max_positions: usize) -> f64 {
    longrope_growth(max_positions as f64 / length as f64, length)
}

/// Attention factor of LongRoPE for a context that is `factor` times as long (Ding et al.,
/// arXiv:2402.13753, section 3.3).
fn longrope_growth(factor: f64, length: usize) -> f64 {
    if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / (length as f64).ln()).sqrt() }
}

fn longrope(table: &Fields, length: usize, max_positions: usize) -> Result<RopeScaling, HfError> {
    let usual = match table.number("factor")? {
        Some(factor) => longrope_growth(factor, length),
        None => usual_longrope_factor(length, max_positions),
    };
    Ok(RopeScaling::LongRope {
        short_factor: table.numbers("short_factor")?,
        long_factor: table.numbers("long_factor")?,
        original_max_position_embeddings: length,
        attention_factor: table.number("attention_factor")?.unwrap_or(usual),
    })
}

//! A template written again so that it pays for what it makes: every operation whose result may be larger than its code, and whatever it reads,
//! goes through the filter [`FILTER`]. What a charge is belongs to `budget`.

use std::fmt::Write;

use minijinja::machinery::ast::{BinOpKind, CallArg, CompareOpKind, Expr, Macro, Stmt, UnaryOpKind};
use minijinja::machinery::{WhitespaceConfig, parse};
use minijinja::value::ValueKind;
use minijinja::{Error, Value};

/// The filter that charges for its value and returns it.
pub(super) const FILTER: &str = "charged";
/// The filter that makes text of a value as Python does: what `~` joins goes through it.
pub(super) const PRINTED: &str = "printed";

/// The template with charges. It has no text outside of tags, so that no rule about blanks changes it, and each tag is in the line of its
/// original, which errors name.
///
/// # Errors
/// Where the template does not parse.
pub(super) fn with_charges(source: &str, name: &str) -> Result<String, Error> {
    let blanks = WhitespaceConfig { keep_trailing_newline: false, lstrip_blocks: true, trim_blocks: true };
    let parsed = parse(source, name, Default::default(), blanks)?;
    let mut printer = Printer { text: String::with_capacity(2 * source.len()), line: 1 };
    printer.statement(&parsed);
    Ok(printer.text)
}

/// Whether a value is charged for where it is used.
#[derive(Clone, Copy, PartialEq)]
enum Use {
    /// What uses it makes something of all of it.
    Whole,
    /// It is only handed on.
    Reference,
}

struct Printer {
    text: String,
    line: usize,
}

impl Printer {
    fn tag(&mut self, start_line: u16, content: &str) {
        self.in_line("{%", start_line, content, "%}");
    }

    fn emit(&mut self, start_line: u16, content: &str) {
        self.in_line("{{", start_line, content, "}}");
    }

    fn in_line(&mut self, open: &str, start_line: u16, content: &str, close: &str) {
        self.text.push_str(open);
        while self.line < usize::from(start_line) {
            self.text.push('\n');
            self.line += 1;
        }
        // The printed content has no line ends: strings have them escaped.
        let _ = write!(self.text, " {content} {close}");
    }

    fn body(&mut self, body: &[Stmt]) {
        body.iter().for_each(|statement| self.statement(statement));
    }

    fn statement(&mut self, statement: &Stmt) {
        match statement {
            Stmt::Template(template) => self.body(&template.children),
            Stmt::EmitExpr(emit) => self.emit(emit.span().start_line, &expression(&emit.expr, Use::Reference)),
            Stmt::EmitRaw(raw) => self.emit(raw.span().start_line, &literal_text(raw.raw)),
            Stmt::ForLoop(each) => {
                let filter = each.filter_expr.as_ref();
                let filter =
                    filter.map_or_else(String::new, |filter| format!(" if {}", expression(filter, Use::Reference)));
                let recursive = if each.recursive { " recursive" } else { "" };
                let (target, over) = (target(&each.target), expression(&each.iter, Use::Whole));
                self.tag(each.span().start_line, &format!("for {target} in {over}{filter}{recursive}"));
                self.body(&each.body);
                self.otherwise(&each.else_body);
                self.text.push_str("{% endfor %}");
            }
            Stmt::IfCond(condition) => {
                let test = expression(&condition.expr, Use::Reference);
                self.tag(condition.span().start_line, &format!("if {test}"));
                self.body(&condition.true_body);
                self.otherwise(&condition.false_body);
                self.text.push_str("{% endif %}");
            }
            Stmt::WithBlock(with) => {
                let pairs = with.assignments.iter();
                let pairs =
                    pairs.map(|(name, value)| format!("{} = {}", target(name), expression(value, Use::Reference)));
                self.tag(with.span().start_line, &format!("with {}", pairs.collect::<Vec<_>>().join(", ")));
                self.body(&with.body);
                self.text.push_str("{% endwith %}");
            }
            Stmt::Set(set) => {
                let text = format!("set {} = {}", target(&set.target), expression(&set.expr, Use::Reference));
                self.tag(set.span().start_line, &text);
            }
            Stmt::SetBlock(set) => {
                let filter = set.filter.as_ref().map_or_else(String::new, |filter| format!(" | {}", filters(filter)));
                self.tag(set.span().start_line, &format!("set {}{filter}", target(&set.target)));
                self.body(&set.body);
                self.text.push_str("{% endset %}");
            }
            Stmt::AutoEscape(escape) => {
                let enabled = expression(&escape.enabled, Use::Reference);
                self.tag(escape.span().start_line, &format!("autoescape {enabled}"));
                self.body(&escape.body);
                self.text.push_str("{% endautoescape %}");
            }
            Stmt::FilterBlock(block) => {
                self.tag(block.span().start_line, &format!("filter {}", filters(&block.filter)));
                self.body(&block.body);
                self.text.push_str("{% endfilter %}");
            }
            Stmt::Macro(declared) => {
                self.tag(declared.span().start_line, &format!("macro {}({})", declared.name, parameters(declared)));
                self.body(&declared.body);
                self.text.push_str("{% endmacro %}");
            }
            Stmt::CallBlock(block) => {
                let call = call(&block.call.expr, &block.call.args);
                let text = format!("call({}) {call}", parameters(&block.macro_decl));
                self.tag(block.span().start_line, &text);
                self.body(&block.macro_decl.body);
                self.text.push_str("{% endcall %}");
            }
            Stmt::Block(_) | Stmt::Import(_) | Stmt::FromImport(_) | Stmt::Extends(_) | Stmt::Include(_) => {
                self.of_several_templates(statement);
            }
            Stmt::Continue(tag) => self.tag(tag.span().start_line, "continue"),
            Stmt::Break(tag) => self.tag(tag.span().start_line, "break"),
            Stmt::Do(tag) => self.tag(tag.span().start_line, &format!("do {}", call(&tag.call.expr, &tag.call.args))),
        }
    }

    /// Statements that templates of several files have. There is no other file: they are errors when they are reached, as in transformers.
    fn of_several_templates(&mut self, statement: &Stmt) {
        match statement {
            Stmt::Block(block) => {
                self.tag(block.span().start_line, &format!("block {}", block.name));
                self.body(&block.body);
                self.text.push_str("{% endblock %}");
            }
            Stmt::Import(import) => {
                let (from, name) = (expression(&import.expr, Use::Reference), target(&import.name));
                self.tag(import.span().start_line, &format!("import {from} as {name}"));
            }
            Stmt::FromImport(import) => {
                let names = import
                    .names
                    .iter()
                    .map(|(name, alias)| format!("{} as {}", target(name), target(alias.as_ref().unwrap_or(name))));
                let from = expression(&import.expr, Use::Reference);
                let text = format!("from {from} import {}", names.collect::<Vec<_>>().join(", "));
                self.tag(import.span().start_line, &text);
            }
            Stmt::Extends(extends) => {
                let name = expression(&extends.name, Use::Reference);
                self.tag(extends.span().start_line, &format!("extends {name}"));
            }
            Stmt::Include(include) => {
                let name = expression(&include.name, Use::Reference);
                let ignore = if include.ignore_missing { " ignore missing" } else { "" };
                self.tag(include.span().start_line, &format!("include {name}{ignore}"));
            }
            other => unreachable!("{other:?} is of one template"),
        }
    }

    fn otherwise(&mut self, body: &[Stmt]) {
        if !body.is_empty() {
            self.text.push_str("{% else %}");
            self.body(body);
        }
    }
}

fn parameters(declared: &Macro) -> String {
    let without = declared.args.len() - declared.defaults.len();
    let named = declared.args.iter().enumerate().map(|(at, name)| match at.checked_sub(without) {
        Some(at) => format!("{} = {}", target(name), expression(&declared.defaults[at], Use::Reference)),
        None => target(name),
    });
    named.collect::<Vec<_>>().join(", ")
}

/// What is assigned to.
fn target(expr: &Expr) -> String {
    match expr {
        Expr::List(list) => {
            let names: Vec<_> = list.items.iter().map(target).collect();
            format!("({},)", names.join(", "))
        }
        Expr::GetAttr(attribute) => format!("{}.{}", target(&attribute.expr), attribute.name),
        other => expression(other, Use::Reference),
    }
}

/// Filters of a block, which has no value before them.
fn filters(expr: &Expr) -> String {
    match expr {
        Expr::Filter(filter) => {
            let before =
                filter.expr.as_ref().map_or_else(String::new, |inner| format!("{} | {FILTER} | ", filters(inner)));
            format!("{before}{}({})", filter.name, arguments(&filter.args))
        }
        other => expression(other, Use::Whole),
    }
}

fn arguments(args: &[CallArg]) -> String {
    let args = args.iter().map(|arg| match arg {
        CallArg::Pos(value) => expression(value, Use::Whole),
        CallArg::Kwarg(name, value) => format!("{name} = {}", expression(value, Use::Whole)),
        CallArg::PosSplat(value) => format!("*{}", expression(value, Use::Whole)),
        CallArg::KwargSplat(value) => format!("**{}", expression(value, Use::Whole)),
    });
    args.collect::<Vec<_>>().join(", ")
}

fn call(callee: &Expr, args: &[CallArg]) -> String {
    format!("{}({})", expression(callee, Use::Reference), arguments(args))
}

/// An expression that can stand anywhere.
fn expression(expr: &Expr, used: Use) -> String {
    use Use::{Reference, Whole};
    // Whether the expression makes a value that was not there.
    let (text, makes) = match expr {
        Expr::Const(constant) => return literal(&constant.value),
        Expr::Var(variable) => (variable.id.to_owned(), false),
        Expr::Slice(slice) => {
            let bound =
                |bound: &Option<Expr>| bound.as_ref().map_or_else(String::new, |bound| expression(bound, Reference));
            let bounds = [&slice.start, &slice.stop, &slice.step].map(bound).join(":");
            (format!("{}[{bounds}]", expression(&slice.expr, Whole)), true)
        }
        Expr::UnaryOp(unary) => {
            let sign = match unary.op {
                UnaryOpKind::Not => "not ",
                UnaryOpKind::Neg => "-",
            };
            (format!("({sign}{})", expression(&unary.expr, Reference)), false)
        }
        Expr::BinOp(binary) if matches!(binary.op, BinOpKind::Concat) => {
            let printed = |operand| format!("({} | {})", expression(operand, Whole), PRINTED);
            (format!("({} ~ {})", printed(&binary.left), printed(&binary.right)), true)
        }
        Expr::BinOp(binary) => {
            let (sign, used, makes) = binary_operator(binary.op);
            (format!("({} {sign} {})", expression(&binary.left, used), expression(&binary.right, used)), makes)
        }
        Expr::Compare(compare) => {
            let mut text = expression(&compare.expr, Whole);
            for operand in &compare.ops {
                let _ = write!(text, " {} {}", comparison(operand.op), expression(&operand.expr, Whole));
            }
            (format!("({text})"), false)
        }
        Expr::IfExpr(choice) => {
            let otherwise = choice.false_expr.as_ref();
            let otherwise = otherwise.map_or_else(String::new, |expr| format!(" else {}", expression(expr, Reference)));
            let (value, test) = (expression(&choice.true_expr, Reference), expression(&choice.test_expr, Reference));
            (format!("({value} if {test}{otherwise})"), false)
        }
        Expr::Filter(filter) => {
            let value =
                filter.expr.as_ref().map_or_else(String::new, |inner| format!("{} | ", expression(inner, Whole)));
            (format!("({value}{}({}))", filter.name, arguments(&filter.args)), true)
        }
        Expr::Test(test) => {
            let used = if test.args.is_empty() { Reference } else { Whole };
            let args = if test.args.is_empty() { String::new() } else { format!("({})", arguments(&test.args)) };
            (format!("({} is {}{args})", expression(&test.expr, used), test.name), false)
        }
        Expr::GetAttr(attribute) => (format!("{}.{}", expression(&attribute.expr, Reference), attribute.name), false),
        Expr::GetItem(item) => {
            let subscript = expression(&item.subscript_expr, Reference);
            (format!("{}[{subscript}]", expression(&item.expr, Reference)), false)
        }
        Expr::Call(called) => (call(&called.expr, &called.args), false),
        Expr::List(list) => {
            let items: Vec<_> = list.items.iter().map(|item| expression(item, Reference)).collect();
            (format!("[{}]", items.join(", ")), true)
        }
        Expr::Map(map) => {
            let pairs = map.keys.iter().zip(&map.values);
            let pair = |(key, value)| format!("{}: {}", expression(key, Reference), expression(value, Reference));
            (format!("{{{}}}", pairs.map(pair).collect::<Vec<_>>().join(", ")), true)
        }
    };
    if makes || used == Whole { format!("({text} | {FILTER})") } else { text }
}

/// How an operator is written, what it reads of its operands, and whether it makes a value.
fn binary_operator(op: BinOpKind) -> (&'static str, Use, bool) {
    match op {
        BinOpKind::ScAnd => ("and", Use::Reference, false),
        BinOpKind::ScOr => ("or", Use::Reference, false),
        BinOpKind::Eq => ("==", Use::Whole, false),
        BinOpKind::Ne => ("!=", Use::Whole, false),
        BinOpKind::Lt => ("<", Use::Whole, false),
        BinOpKind::Lte => ("<=", Use::Whole, false),
        BinOpKind::Gt => (">", Use::Whole, false),
        BinOpKind::Gte => (">=", Use::Whole, false),
        BinOpKind::In => ("in", Use::Whole, false),
        BinOpKind::Add => ("+", Use::Whole, true),
        BinOpKind::Sub => ("-", Use::Whole, true),
        BinOpKind::Mul => ("*", Use::Whole, true),
        BinOpKind::Div => ("/", Use::Whole, true),
        BinOpKind::FloorDiv => ("//", Use::Whole, true),
        BinOpKind::Rem => ("%", Use::Whole, true),
        BinOpKind::Pow => ("**", Use::Whole, true),
        BinOpKind::Concat => ("~", Use::Whole, true),
    }
}

fn comparison(op: CompareOpKind) -> &'static str {
    match op {
        CompareOpKind::Eq => "==",
        CompareOpKind::Ne => "!=",
        CompareOpKind::Lt => "<",
        CompareOpKind::Lte => "<=",
        CompareOpKind::Gt => ">",
        CompareOpKind::Gte => ">=",
        CompareOpKind::In => "in",
        CompareOpKind::NotIn => "not in",
    }
}

/// A constant as the template's own language writes it.
fn literal(value: &Value) -> String {
    match (value.kind(), value.as_str()) {
        (_, Some(text)) => literal_text(text),
        (ValueKind::Bool, _) => if value.is_true() { "true" } else { "false" }.to_owned(),
        (ValueKind::None | ValueKind::Undefined, _) => "none".to_owned(),
        (ValueKind::Map, _) => {
            let keys = value.try_iter().into_iter().flatten();
            let pairs =
                keys.map(|key| format!("{}: {}", literal(&key), literal(&value.get_item(&key).unwrap_or_default())));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(", "))
        }
        (ValueKind::Seq | ValueKind::Iterable, _) => {
            let items: Vec<_> = value.try_iter().into_iter().flatten().map(|item| literal(&item)).collect();
            format!("[{}]", items.join(", "))
        }
        // A number.
        _ => format!("({value})"),
    }
}

/// A text within quotes; Jinja unescapes what JSON escapes.
fn literal_text(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

//! Parser of templates: Jinja2's grammar with `break`, `continue` and `generation`.

use std::collections::HashMap;
use std::sync::Arc;

use num_traits::ToPrimitive;

use super::ast::{Args, CallBlock, Comparison, Expr, Filter, For, Macro, Math, Name, SetBlock, Stmt, Target};
use super::error::Error;
use super::lexer::{Token, tokens};

/// Deepest nesting of statements and parentheses.
const DEPTH: u32 = 100;
/// Most filters, attributes, calls and signs of one operand.
const CHAIN: u32 = 300;

pub(super) struct Parsed {
    pub(super) body: Vec<Stmt>,
    pub(super) names: Vec<Arc<str>>,
    pub(super) has_generation: bool,
}

/// Parses a template. An error is a syntax error with its line.
pub(super) fn parse(source: &str) -> Result<Parsed, Error> {
    let mut parser = Parser {
        tokens: tokens(source)?,
        at: 0,
        names: Vec::new(),
        numbers: HashMap::new(),
        depth: 0,
        loops: 0,
        has_generation: false,
        special: [false; 3],
    };
    let body = parser.statements(&[])?;
    Ok(Parsed { body, names: parser.names, has_generation: parser.has_generation })
}

/// Names that macros are given if they mention them.
const SPECIAL: [&str; 3] = ["caller", "varargs", "kwargs"];

struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
    names: Vec<Arc<str>>,
    numbers: HashMap<Arc<str>, Name>,
    depth: u32,
    /// Loops around the statement within one function: `break` is an error outside.
    loops: u32,
    has_generation: bool,
    /// True for each of [`SPECIAL`] that was seen.
    special: [bool; 3],
}

type Result<T, E = Error> = std::result::Result<T, E>;

impl Parser {
    fn token(&self) -> &Token {
        &self.tokens[self.at].0
    }

    fn line(&self) -> u32 {
        self.tokens[self.at].1
    }

    fn next(&mut self) -> Token {
        let token = self.tokens[self.at].0.clone();
        if self.at + 1 < self.tokens.len() {
            self.at += 1;
        }
        token
    }

    fn fail<T>(&self, message: impl Into<String>) -> Result<T> {
        Err(Error::syntax(message).at_line(self.line()))
    }

    fn is_operator(&self, operator: &str) -> bool {
        matches!(self.token(), Token::Operator(found) if *found == operator)
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.token(), Token::Name(found) if **found == *name)
    }

    fn is_next_name(&self, name: &str) -> bool {
        matches!(self.tokens.get(self.at + 1), Some((Token::Name(found), _)) if **found == *name)
    }

    fn skip_operator(&mut self, operator: &str) -> bool {
        self.is_operator(operator) && {
            self.next();
            true
        }
    }

    fn skip_name(&mut self, name: &str) -> bool {
        self.is_name(name) && {
            self.next();
            true
        }
    }

    fn expect(&mut self, token: &Token) -> Result<()> {
        if self.token() == token {
            self.next();
            return Ok(());
        }
        self.fail(format!("expected {token}, found {}", self.token()))
    }

    fn expect_operator(&mut self, operator: &'static str) -> Result<()> {
        self.expect(&Token::Operator(operator))
    }

    fn expect_word(&mut self) -> Result<Arc<str>> {
        match self.next() {
            Token::Name(name) => Ok(name),
            other => {
                self.at = self.at.saturating_sub(1);
                self.fail(format!("expected a name, found {other}"))
            }
        }
    }

    fn expect_name(&mut self, name: &str) -> Result<()> {
        if self.skip_name(name) {
            return Ok(());
        }
        self.fail(format!("expected '{name}', found {}", self.token()))
    }

    fn number(&mut self, name: Arc<str>) -> Name {
        if let Some(at) = SPECIAL.iter().position(|special| **special == *name) {
            self.special[at] = true;
        }
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        let number = self.names.len() as Name;
        self.names.push(name.clone());
        self.numbers.insert(name, number);
        number
    }

    /// Runs `parse` one level deeper.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= DEPTH {
            return self.fail(format!("it nests deeper than {DEPTH} levels"));
        }
        self.depth += 1;
        let made = parse(self);
        self.depth -= 1;
        made
    }

    /// Statements up to a tag that begins with one of `ends`, which is the next token then; without
    /// `ends`, all.
    fn statements(&mut self, ends: &[&str]) -> Result<Vec<Stmt>> {
        let mut body = Vec::new();
        loop {
            let line = self.line();
            match self.next() {
                Token::Data(text) => body.push(Stmt::Text(text.into())),
                Token::PrintBegin => {
                    let expr = self.tuple(true, &[])?;
                    self.expect(&Token::PrintEnd)?;
                    body.push(Stmt::Print(expr, line));
                }
                Token::BlockBegin => {
                    if ends.iter().any(|end| self.is_name(end)) {
                        return Ok(body);
                    }
                    let statement = self.nested(Self::statement)?;
                    self.expect(&Token::BlockEnd)?;
                    body.extend(statement);
                }
                Token::End if ends.is_empty() => return Ok(body),
                Token::End => {
                    return self.fail(format!("unexpected end of template, expected {}", ends.join(" or ")));
                }
                other => return self.fail(format!("unexpected {other}")),
            }
        }
    }

    /// The body of a statement, with the tag's end before it; the end tag's first word is the next
    /// token.
    fn body(&mut self, ends: &[&str]) -> Result<Vec<Stmt>> {
        self.skip_operator(":");
        self.expect(&Token::BlockEnd)?;
        self.statements(ends)
    }

    /// As [`Self::body`], and skips the word.
    fn whole_body(&mut self, end: &str) -> Result<Vec<Stmt>> {
        let body = self.body(&[end])?;
        self.next();
        Ok(body)
    }

    /// A body in a function or frame of its own.
    fn function_body(&mut self, end: &str) -> Result<Vec<Stmt>> {
        let loops = std::mem::take(&mut self.loops);
        let body = self.whole_body(end);
        self.loops = loops;
        body
    }

    fn statement(&mut self) -> Result<Vec<Stmt>> {
        let line = self.line();
        let Token::Name(word) = self.next() else { return self.fail("expected the name of a tag") };
        let made = match &*word {
            "for" => self.for_loop(line)?,
            "if" => self.condition(line)?,
            "set" => self.set(line)?,
            "with" => self.with(line)?,
            "print" => return self.print(line),
            "macro" => {
                let name = self.expect_word()?;
                let name = self.number(name);
                Stmt::Macro(Arc::new(self.signature_and_body(name, "endmacro")?))
            }
            "call" => self.call_block(line)?,
            "filter" => {
                let filters = self.filters(true)?;
                Stmt::Filter(filters, self.whole_body("endfilter")?, line)
            }
            "autoescape" => {
                let enabled = self.expression(true)?;
                Stmt::Autoescape(enabled, self.whole_body("endautoescape")?, line)
            }
            "block" => self.block()?,
            "generation" => {
                self.has_generation = true;
                Stmt::Generation(self.function_body("endgeneration")?)
            }
            "break" | "continue" if self.loops == 0 => return self.fail(format!("'{word}' outside of a loop")),
            "break" => Stmt::Break,
            "continue" => Stmt::Continue,
            "extends" | "include" | "import" | "from" => {
                while !matches!(self.token(), Token::BlockEnd | Token::End) {
                    self.next();
                }
                Stmt::NoLoader(line)
            }
            unknown => return Err(Error::syntax(format!("unknown tag '{unknown}'")).at_line(line)),
        };
        Ok(vec![made])
    }

    fn print(&mut self, line: u32) -> Result<Vec<Stmt>> {
        let mut made = Vec::new();
        while *self.token() != Token::BlockEnd {
            if !made.is_empty() {
                self.expect_operator(",")?;
            }
            made.push(Stmt::Print(self.expression(true)?, line));
        }
        Ok(made)
    }

    fn for_loop(&mut self, line: u32) -> Result<Stmt> {
        let target = self.target(false, &["in"])?;
        self.expect_name("in")?;
        let iter = self.tuple(false, &["recursive"])?;
        let filter = if self.skip_name("if") { Some(self.expression(true)?) } else { None };
        let is_recursive = self.skip_name("recursive");
        self.loops += 1;
        let body = self.body(&["endfor", "else"])?;
        self.loops -= 1;
        let otherwise = match self.next() {
            Token::Name(word) if *word == *"else" => self.whole_body("endfor")?,
            _ => Vec::new(),
        };
        Ok(Stmt::For(Arc::new(For { target, iter, filter, is_recursive, body, otherwise, line })))
    }

    fn condition(&mut self, line: u32) -> Result<Stmt> {
        let (mut branches, mut otherwise) = (Vec::new(), Vec::new());
        loop {
            let test = self.tuple(false, &[])?;
            let body = self.body(&["elif", "else", "endif"])?;
            branches.push((test, body));
            match self.next() {
                Token::Name(word) if *word == *"elif" => {}
                Token::Name(word) if *word == *"else" => {
                    otherwise = self.whole_body("endif")?;
                    break;
                }
                _ => break,
            }
        }
        Ok(Stmt::If(branches, otherwise, line))
    }

    fn set(&mut self, line: u32) -> Result<Stmt> {
        let target = self.target(true, &[])?;
        if self.skip_operator("=") {
            return Ok(Stmt::Set(target, self.tuple(true, &[])?, line));
        }
        let filters = self.filters(false)?;
        let body = self.whole_body("endset")?;
        Ok(Stmt::SetBlock(Box::new(SetBlock { target, filters, body, line })))
    }

    fn with(&mut self, line: u32) -> Result<Stmt> {
        let mut pairs = Vec::new();
        while *self.token() != Token::BlockEnd {
            if !pairs.is_empty() {
                self.expect_operator(",")?;
            }
            let target = self.target(false, &[])?;
            self.expect_operator("=")?;
            pairs.push((target, self.expression(true)?));
        }
        Ok(Stmt::With(pairs, self.whole_body("endwith")?, line))
    }

    fn block(&mut self) -> Result<Stmt> {
        let name = self.expect_word()?;
        self.skip_name("scoped");
        self.skip_name("required");
        let body = self.function_body("endblock")?;
        self.skip_name(&name);
        Ok(Stmt::Block(body))
    }

    fn call_block(&mut self, line: u32) -> Result<Stmt> {
        let caller = self.number("caller".into());
        let special = self.special;
        let (args, defaults) = if self.is_operator("(") { self.signature()? } else { (Vec::new(), Vec::new()) };
        let call = self.expression(true)?;
        if !matches!(call, Expr::Call(..)) {
            return self.fail("expected a call");
        }
        self.special = [false; 3];
        let body = self.function_body("endcall")?;
        let caller = Macro {
            name: caller,
            args,
            defaults,
            body,
            uses_caller: self.special[0],
            uses_varargs: self.special[1],
            uses_kwargs: self.special[2],
        };
        // A `caller` of the body is that of the macro around it.
        self.special = std::array::from_fn(|at| special[at] || self.special[at]);
        Ok(Stmt::Call(Box::new(CallBlock { call, caller: Arc::new(caller), line })))
    }

    fn signature_and_body(&mut self, name: Name, end: &str) -> Result<Macro> {
        let special = std::mem::take(&mut self.special);
        let (args, defaults) = self.signature()?;
        let body = self.function_body(end)?;
        let [uses_caller, uses_varargs, uses_kwargs] = self.special;
        self.special = std::array::from_fn(|at| special[at] || self.special[at]);
        Ok(Macro { name, args, defaults, body, uses_caller, uses_varargs, uses_kwargs })
    }

    fn signature(&mut self) -> Result<(Vec<Name>, Vec<Expr>)> {
        let (mut args, mut defaults) = (Vec::new(), Vec::new());
        self.expect_operator("(")?;
        while !self.is_operator(")") {
            if !args.is_empty() {
                self.expect_operator(",")?;
            }
            let name = self.expect_word()?;
            args.push(self.number(name));
            if self.skip_operator("=") {
                defaults.push(self.expression(true)?);
            } else if !defaults.is_empty() {
                return self.fail("an argument without a default follows one with a default");
            }
        }
        self.expect_operator(")")?;
        Ok((args, defaults))
    }

    fn target(&mut self, with_attributes: bool, ends: &[&str]) -> Result<Target> {
        let (mut targets, is_tuple) = self.separated(ends, |parser| parser.single_target(with_attributes))?;
        match targets.pop() {
            Some(target) if !is_tuple => Ok(target),
            Some(target) => {
                targets.push(target);
                Ok(Target::Tuple(targets))
            }
            None => self.fail(format!("expected a name to assign to, found {}", self.token())),
        }
    }

    fn single_target(&mut self, with_attributes: bool) -> Result<Target> {
        if self.is_operator("(") {
            self.next();
            let inner = self.nested(|parser| parser.target(false, &[]))?;
            self.expect_operator(")")?;
            return Ok(inner);
        }
        let name = self.expect_word()?;
        if ["true", "false", "True", "False", "none", "None"].contains(&&*name) {
            return self.fail(format!("cannot assign to '{name}'"));
        }
        let number = self.number(name);
        if with_attributes && self.skip_operator(".") {
            return Ok(Target::Attribute(number, self.expect_word()?));
        }
        Ok(Target::Name(number))
    }

    /// Items with commas between them, and whether there is a comma, which makes a tuple.
    fn separated<T>(&mut self, ends: &[&str], mut item: impl FnMut(&mut Self) -> Result<T>) -> Result<(Vec<T>, bool)> {
        let (mut items, mut is_tuple) = (Vec::new(), false);
        while !self.is_tuple_end(ends) {
            items.push(item(self)?);
            if !self.skip_operator(",") {
                break;
            }
            is_tuple = true;
        }
        Ok((items, is_tuple))
    }

    fn is_tuple_end(&self, ends: &[&str]) -> bool {
        matches!(self.token(), Token::PrintEnd | Token::BlockEnd | Token::Operator(")"))
            || ends.iter().any(|end| self.is_name(end))
    }

    /// An expression, or several with commas between them, which are a tuple.
    fn tuple(&mut self, with_condition: bool, ends: &[&str]) -> Result<Expr> {
        self.tuple_within(with_condition, ends, false)
    }

    fn tuple_within(&mut self, with_condition: bool, ends: &[&str], in_parentheses: bool) -> Result<Expr> {
        let (mut items, is_tuple) = self.separated(ends, |parser| parser.expression(with_condition))?;
        if !is_tuple {
            match items.pop() {
                Some(item) => return Ok(item),
                None if !in_parentheses => {
                    return self.fail(format!("expected an expression, found {}", self.token()));
                }
                None => {}
            }
        }
        Ok(Expr::Tuple(items))
    }

    fn expression(&mut self, with_condition: bool) -> Result<Expr> {
        self.nested(|parser| if with_condition { parser.conditional() } else { parser.or() })
    }

    fn conditional(&mut self) -> Result<Expr> {
        let mut value = self.or()?;
        while self.skip_name("if") {
            let test = self.or()?;
            let otherwise = if self.skip_name("else") { Some(self.nested(Self::conditional)?) } else { None };
            value = Expr::If(Box::new((value, test, otherwise)));
        }
        Ok(value)
    }

    fn or(&mut self) -> Result<Expr> {
        let first = self.and()?;
        if !self.is_name("or") {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.skip_name("or") {
            operands.push(self.and()?);
        }
        Ok(Expr::Or(operands))
    }

    fn and(&mut self) -> Result<Expr> {
        let first = self.not()?;
        if !self.is_name("and") {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.skip_name("and") {
            operands.push(self.not()?);
        }
        Ok(Expr::And(operands))
    }

    fn not(&mut self) -> Result<Expr> {
        if self.skip_name("not") {
            return Ok(Expr::Not(Box::new(self.nested(Self::not)?)));
        }
        self.compare()
    }

    fn compare(&mut self) -> Result<Expr> {
        let first = self.sum()?;
        let mut operands = Vec::new();
        loop {
            let comparison = match self.token() {
                Token::Operator("==") => Comparison::Eq,
                Token::Operator("!=") => Comparison::Ne,
                Token::Operator("<") => Comparison::Lt,
                Token::Operator("<=") => Comparison::Le,
                Token::Operator(">") => Comparison::Gt,
                Token::Operator(">=") => Comparison::Ge,
                Token::Name(name) if **name == *"in" => Comparison::In,
                Token::Name(name) if **name == *"not" && self.is_next_name("in") => {
                    self.next();
                    Comparison::NotIn
                }
                _ => break,
            };
            self.next();
            operands.push((comparison, self.sum()?));
        }
        Ok(if operands.is_empty() { first } else { Expr::Compare(Box::new(first), operands) })
    }

    fn math(&mut self, operand: impl Fn(&mut Self) -> Result<Expr>, operators: &[(&str, Math)]) -> Result<Expr> {
        let first = operand(self)?;
        let mut operands = Vec::new();
        while let Some((_, math)) = operators.iter().find(|(operator, _)| self.is_operator(operator)) {
            self.next();
            operands.push((*math, operand(self)?));
        }
        Ok(if operands.is_empty() { first } else { Expr::Math(Box::new(first), operands) })
    }

    fn sum(&mut self) -> Result<Expr> {
        self.math(Self::concat, &[("+", Math::Add), ("-", Math::Sub)])
    }

    fn concat(&mut self) -> Result<Expr> {
        let first = self.product()?;
        if !self.is_operator("~") {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.skip_operator("~") {
            operands.push(self.product()?);
        }
        Ok(Expr::Concat(operands))
    }

    fn product(&mut self) -> Result<Expr> {
        let power = |parser: &mut Self| parser.math(|parser| parser.unary(true), &[("**", Math::Pow)]);
        self.math(power, &[("*", Math::Mul), ("/", Math::Div), ("//", Math::FloorDiv), ("%", Math::Rem)])
    }

    fn unary(&mut self, with_filters: bool) -> Result<Expr> {
        let mut operand = if self.is_operator("-") || self.is_operator("+") {
            let is_minus = self.next() == Token::Operator("-");
            let inner = Box::new(self.nested(|parser| parser.unary(false))?);
            if is_minus { Expr::Neg(inner) } else { Expr::Pos(inner) }
        } else {
            self.primary()?
        };
        let mut length = 0;
        operand = self.postfix(operand, &mut length)?;
        if with_filters {
            operand = self.filters_and_tests(operand, &mut length)?;
        }
        Ok(operand)
    }

    fn count(&self, length: &mut u32) -> Result<()> {
        *length += 1;
        if *length > CHAIN {
            self.fail(format!("an operand with more than {CHAIN} filters, calls and attributes"))
        } else {
            Ok(())
        }
    }

    fn primary(&mut self) -> Result<Expr> {
        let line = self.line();
        match self.next() {
            Token::Name(name) => Ok(match &*name {
                "true" | "True" => Expr::Bool(true),
                "false" | "False" => Expr::Bool(false),
                "none" | "None" => Expr::None,
                _ => Expr::Name(self.number(name)),
            }),
            Token::Text(mut text) => {
                while let Token::Text(more) = self.token() {
                    text.push_str(more);
                    self.next();
                }
                Ok(Expr::Text(text.into()))
            }
            Token::Integer(number) => Ok(number.to_i64().map_or_else(|| Expr::Big(number), Expr::Int)),
            Token::Float(number) => Ok(Expr::Float(number)),
            Token::Operator("(") => {
                let inner = self.tuple_within(true, &[], true)?;
                self.expect_operator(")")?;
                Ok(inner)
            }
            Token::Operator("[") => {
                let mut items = Vec::new();
                while !self.is_operator("]") {
                    if !items.is_empty() {
                        self.expect_operator(",")?;
                    }
                    if self.is_operator("]") {
                        break;
                    }
                    items.push(self.expression(true)?);
                }
                self.next();
                Ok(Expr::List(items))
            }
            Token::Operator("{") => {
                let mut pairs = Vec::new();
                while !self.is_operator("}") {
                    if !pairs.is_empty() {
                        self.expect_operator(",")?;
                    }
                    if self.is_operator("}") {
                        break;
                    }
                    let key = self.expression(true)?;
                    self.expect_operator(":")?;
                    pairs.push((key, self.expression(true)?));
                }
                self.next();
                Ok(Expr::Dict(pairs))
            }
            other => Err(Error::syntax(format!("unexpected {other}")).at_line(line)),
        }
    }

    fn postfix(&mut self, mut operand: Expr, length: &mut u32) -> Result<Expr> {
        loop {
            let line = self.line();
            operand = match self.token() {
                Token::Operator(".") => {
                    self.next();
                    match self.next() {
                        Token::Name(name) => Expr::Attribute(Box::new(operand), name),
                        Token::Integer(number) => {
                            let item = number.to_i64().map_or(Expr::None, Expr::Int);
                            Expr::Item(Box::new((operand, item)))
                        }
                        other => return self.fail(format!("expected a name or a number, found {other}")),
                    }
                }
                Token::Operator("[") => {
                    self.next();
                    let made = self.subscript(operand)?;
                    self.expect_operator("]")?;
                    made
                }
                Token::Operator("(") => Expr::Call(Box::new((operand, self.args()?)), line),
                _ => return Ok(operand),
            };
            self.count(length)?;
        }
    }

    /// An item or a slice, without the brackets.
    fn subscript(&mut self, operand: Expr) -> Result<Expr> {
        let is_bound = |parser: &Self| !parser.is_operator(":") && !parser.is_operator("]") && !parser.is_operator(",");
        let first = if is_bound(self) { Some(self.expression(true)?) } else { None };
        if !self.skip_operator(":") {
            let Some(first) = first else { return self.fail("expected a subscript") };
            if !self.is_operator(",") {
                return Ok(Expr::Item(Box::new((operand, first))));
            }
            let mut items = vec![first];
            while self.skip_operator(",") {
                items.push(self.expression(true)?);
            }
            return Ok(Expr::Item(Box::new((operand, Expr::Tuple(items)))));
        }
        let stop = if is_bound(self) { Some(self.expression(true)?) } else { None };
        let has_step = self.skip_operator(":") && is_bound(self);
        let step = if has_step { Some(self.expression(true)?) } else { None };
        Ok(Expr::Slice(Box::new((operand, first, stop, step))))
    }

    fn filters_and_tests(&mut self, mut operand: Expr, length: &mut u32) -> Result<Expr> {
        loop {
            let line = self.line();
            operand = match self.token() {
                Token::Operator("|") => {
                    self.next();
                    let filter = self.filter()?;
                    Expr::Filter(Box::new(operand), Box::new(filter))
                }
                Token::Name(name) if **name == *"is" => self.test(operand)?,
                Token::Operator("(") => Expr::Call(Box::new((operand, self.args()?)), line),
                _ => return Ok(operand),
            };
            self.count(length)?;
        }
    }

    /// The filters of a block; the first of a filter block has no bar before it.
    fn filters(&mut self, first_is_bare: bool) -> Result<Vec<Filter>> {
        let (mut filters, mut is_bare) = (Vec::new(), first_is_bare);
        while is_bare || self.skip_operator("|") {
            is_bare = false;
            filters.push(self.filter()?);
        }
        Ok(filters)
    }

    fn dotted(&mut self) -> Result<Arc<str>> {
        let mut name = self.expect_word()?;
        while self.skip_operator(".") {
            name = format!("{name}.{}", self.expect_word()?).into();
        }
        Ok(name)
    }

    fn filter(&mut self) -> Result<Filter> {
        let line = self.line();
        let name = self.dotted()?;
        let args = if self.is_operator("(") { self.args()? } else { Args::default() };
        Ok(Filter { name, args, line })
    }

    fn test(&mut self, operand: Expr) -> Result<Expr> {
        let line = self.line();
        self.next();
        let is_negated = self.skip_name("not");
        let name = self.dotted()?;
        let mut args = Args::default();
        let is_word = |word: &str| self.is_name(word);
        match self.token() {
            Token::Operator("(") => args = self.args()?,
            Token::Name(_) if ["else", "or", "and"].into_iter().any(is_word) => {}
            Token::Name(_) if is_word("is") => return self.fail("tests with `is` cannot be chained"),
            Token::Name(_) | Token::Text(_) | Token::Integer(_) | Token::Float(_) | Token::Operator("[" | "{") => {
                let argument = self.nested(Self::primary)?;
                let mut length = 0;
                args.positional.push(self.postfix(argument, &mut length)?);
            }
            _ => {}
        }
        let test = Expr::Test(Box::new(operand), Box::new(Filter { name, args, line }));
        Ok(if is_negated { Expr::Not(Box::new(test)) } else { test })
    }

    fn args(&mut self) -> Result<Args> {
        self.expect_operator("(")?;
        let mut args = Args::default();
        let mut is_first = true;
        while !self.is_operator(")") {
            if !is_first {
                self.expect_operator(",")?;
                if self.is_operator(")") {
                    break;
                }
            }
            is_first = false;
            let invalid = "invalid syntax for the arguments of a call";
            let is_named = matches!(self.token(), Token::Name(_))
                && matches!(self.tokens.get(self.at + 1), Some((Token::Operator("="), _)));
            if self.skip_operator("*") {
                if args.more.is_some() || args.more_named.is_some() {
                    return self.fail(invalid);
                }
                args.more = Some(self.expression(true)?);
            } else if self.skip_operator("**") {
                if args.more_named.is_some() {
                    return self.fail(invalid);
                }
                args.more_named = Some(self.expression(true)?);
            } else if is_named {
                if args.more_named.is_some() {
                    return self.fail(invalid);
                }
                let name = self.expect_word()?;
                self.next();
                args.named.push((name, self.expression(true)?));
            } else {
                if args.more.is_some() || args.more_named.is_some() || !args.named.is_empty() {
                    return self.fail(invalid);
                }
                args.positional.push(self.expression(true)?);
            }
        }
        self.next();
        Ok(args)
    }
}

//! Parser of templates: Jinja2's grammar with `break`, `continue` and `generation`.

mod expressions;

use std::collections::HashMap;
use std::sync::Arc;

use super::ast::{CallBlock, Expr, For, Macro, Name, SetBlock, Stmt, Target};
use super::error::Error;
use super::lexer::{Token, tokens};

/// Deepest nesting of statements and parentheses.
const DEPTH: u32 = 100;

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
        let from = self.at;
        let target = self.target(false, &["in"])?;
        let is_loop = |token: &Token| matches!(token, Token::Name(name) if **name == *"loop");
        if self.tokens[from..self.at].iter().any(|(token, _)| is_loop(token)) {
            return self.fail("cannot assign to the special variable 'loop' of a loop");
        }
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
}

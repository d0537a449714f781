//! Uses between the files of a crate: `use` declarations and paths, followed through re-exports to
//! the file that has the item.

use std::collections::{BTreeMap, BTreeSet};

use crate::source::{Source, sources};

/// A module: its file, and the names in its scope.
#[derive(Default)]
struct Module {
    file: usize,
    items: BTreeSet<String>,
    children: BTreeMap<String, usize>,
    /// Names that `use` declares, with their paths.
    uses: BTreeMap<String, Vec<String>>,
    globs: Vec<Vec<String>>,
    /// Paths in code, of one segment or more.
    paths: Vec<Vec<String>>,
    parent: Option<usize>,
}

/// The modules of a crate, tests left out.
pub struct Crate {
    pub files: Vec<Source>,
    modules: Vec<Module>,
}

impl Crate {
    /// Reads `PACKAGE/src`.
    pub fn read(package: &str) -> Self {
        let files = sources(&format!("{package}/src")).into_iter().filter(|file| !file.is_test()).collect();
        Self::from_sources(package, files)
    }

    fn from_sources(package: &str, files: Vec<Source>) -> Self {
        let mut krate = Self { files, modules: Vec::new() };
        let source = |name: &str| format!("{package}/src/{name}");
        for top in ["lib.rs", "main.rs"] {
            if let Some(file) = krate.files.iter().position(|file| file.path == source(top)) {
                krate.add_file(file, None, &source(""));
            }
        }
        krate
    }

    /// The module of a file and those inside it; `folder` has its children.
    fn add_file(&mut self, file: usize, parent: Option<usize>, folder: &str) -> usize {
        let code = self.files[file].code.clone();
        let tokens: Vec<String> =
            Source { path: String::new(), text: String::new(), code }.tokens().into_iter().map(str::to_owned).collect();
        let module = self.new_module(file, parent);
        self.read_module(module, &tokens, folder);
        module
    }

    fn new_module(&mut self, file: usize, parent: Option<usize>) -> usize {
        self.modules.push(Module { file, parent, ..Module::default() });
        self.modules.len() - 1
    }

    fn read_module(&mut self, module: usize, tokens: &[String], folder: &str) {
        let mut i = 0;
        while i < tokens.len() {
            let token = tokens[i].as_str();
            let next = tokens.get(i + 1).map_or("", String::as_str);
            if tokens[i..].iter().take(7).eq(["#", "[", "cfg", "(", "test", ")", "]"]) {
                i = skip_item(tokens, i + 7);
            } else if token == "use" {
                let end = (i..tokens.len()).find(|j| tokens[*j] == ";").unwrap_or(tokens.len());
                self.add_use(module, &tokens[i + 1..end], &[]);
                i = end;
            } else if token == "mod" && tokens.get(i + 2).is_some_and(|t| t == "{") {
                let end = skip_item(tokens, i);
                let file = self.modules[module].file;
                let inner = self.new_module(file, Some(module));
                self.modules[module].children.insert(next.to_owned(), inner);
                self.read_module(inner, &tokens[i + 3..end], &format!("{folder}{next}/"));
                i = end;
            } else if token == "mod" {
                let candidates = [format!("{folder}{next}.rs"), format!("{folder}{next}/mod.rs")];
                if let Some(file) = self.files.iter().position(|file| candidates.contains(&file.path)) {
                    let child = self.add_file(file, Some(module), &format!("{folder}{next}/"));
                    self.modules[module].children.insert(next.to_owned(), child);
                }
                i += 2;
            } else {
                if ["fn", "struct", "enum", "trait", "type", "const", "static", "union"].contains(&token)
                    || token == "macro_rules"
                {
                    let name = if next == "!" { &tokens[i + 2] } else { next };
                    self.modules[module].items.insert(name.to_owned());
                }
                i = self.add_path(module, tokens, i);
            }
        }
    }

    /// Notes the path at `i` and returns where it ends.
    fn add_path(&mut self, module: usize, tokens: &[String], i: usize) -> usize {
        let is_name = |token: &String| token.starts_with(|c: char| c.is_alphabetic() || c == '_');
        let mut end = i + 1;
        if !is_name(&tokens[i]) || (i > 0 && (tokens[i - 1] == "::" || tokens[i - 1] == ".")) {
            return end;
        }
        let mut path = vec![tokens[i].clone()];
        while tokens.get(end).is_some_and(|t| t == "::") && tokens.get(end + 1).is_some_and(is_name) {
            path.push(tokens[end + 1].clone());
            end += 2;
        }
        self.modules[module].paths.push(path);
        end
    }

    /// A `use` tree.
    fn add_use(&mut self, module: usize, tree: &[String], prefix: &[String]) {
        let mut prefix = prefix.to_vec();
        let mut i = 0;
        while i < tree.len() {
            match tree[i].as_str() {
                "::" => {}
                "{" => {
                    let mut depth = 0;
                    let mut from = i + 1;
                    for j in i..tree.len() {
                        match tree[j].as_str() {
                            "{" => depth += 1,
                            "}" => depth -= 1,
                            _ => {}
                        }
                        if (depth == 1 && tree[j] == ",") || depth == 0 {
                            self.add_use(module, &tree[from..j], &prefix);
                            from = j + 1;
                        }
                    }
                    return;
                }
                "*" => {
                    self.modules[module].globs.push(prefix);
                    return;
                }
                "as" => {
                    self.modules[module].uses.insert(tree[i + 1].clone(), prefix);
                    return;
                }
                name => prefix.push(name.to_owned()),
            }
            i += 1;
        }
        if prefix.last().is_some_and(|name| name == "self") {
            prefix.pop();
        }
        if let (false, Some(name)) = (tree.is_empty(), prefix.last().cloned()) {
            self.modules[module].uses.insert(name, prefix);
        }
    }

    /// The file with the item that `path` names in `module`; `None` for items of other crates and
    /// for modules.
    fn resolve(&self, module: usize, path: &[String], fuel: usize) -> Option<usize> {
        let (mut at, mut rest) = (module, path);
        let mut is_relative = false;
        while let (Some((name, tail)), true) = (rest.split_first(), fuel > 0) {
            let here = &self.modules[at];
            let up = here.parent.unwrap_or(at);
            if let Some(child) = match name.as_str() {
                "crate" => Some(0),
                "self" => Some(at),
                "super" => Some(up),
                name => here.children.get(name).copied(),
            } {
                (at, rest, is_relative) = (child, tail, true);
                continue;
            }
            if let Some(target) = here.uses.get(name) {
                let whole = [target, tail].concat();
                return if whole == path && at == module { None } else { self.resolve(at, &whole, fuel - 1) };
            }
            if here.items.contains(name) {
                return Some(here.file);
            }
            let found = here.globs.iter().find_map(|glob| self.resolve(at, &[glob, rest].concat(), fuel - 1));
            return found.or(is_relative.then_some(here.file));
        }
        None
    }

    /// By file, the files whose items it uses.
    pub fn edges(&self) -> Vec<BTreeSet<usize>> {
        let mut edges = vec![BTreeSet::new(); self.files.len()];
        for (index, module) in self.modules.iter().enumerate() {
            for path in &module.paths {
                if let Some(file) = self.resolve(index, path, 8).filter(|file| *file != module.file) {
                    edges[module.file].insert(file);
                }
            }
        }
        edges
    }

    /// Groups of files that use each other in a ring, largest first.
    pub fn circles(&self) -> Vec<Vec<&str>> {
        let edges = self.edges();
        let reach: Vec<BTreeSet<usize>> = (0..edges.len()).map(|from| reachable(&edges, from)).collect();
        let mut circles: Vec<Vec<usize>> = Vec::new();
        for file in 0..edges.len() {
            let circle: Vec<usize> =
                reach[file].iter().copied().filter(|other| reach[*other].contains(&file)).collect();
            if circle.len() > 1 && circle[0] == file {
                circles.push(circle);
            }
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles.iter().map(|circle| circle.iter().map(|file| self.files[*file].path.as_str()).collect()).collect()
    }
}

fn reachable(edges: &[BTreeSet<usize>], from: usize) -> BTreeSet<usize> {
    let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
    while let Some(file) = left.pop() {
        left.extend(edges[file].iter().copied().filter(|next| seen.insert(*next)));
    }
    seen
}

/// End of the item that begins at `i`: at its `;`, or after its block.
fn skip_item(tokens: &[String], i: usize) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate().skip(i) {
        match token.as_str() {
            ";" if depth == 0 => return at + 1,
            "{" => depth += 1,
            "}" if depth <= 1 => return at + 1,
            "}" => depth -= 1,
            _ => {}
        }
    }
    tokens.len()
}

#[cfg(test)]
fn example() -> Crate {
    let files = [
        ("x/src/lib.rs", "pub mod a; mod b; mod c; mod d;"),
        ("x/src/a/mod.rs", "mod inner; pub use inner::{Thing, other as renamed}; pub fn own() {}"),
        ("x/src/a/inner.rs", "use super::own; pub struct Thing; pub fn other() { own() }"),
        (
            "x/src/b.rs",
            "use crate::a::Thing; fn f() { crate::a::renamed(); } #[cfg(test)] mod tests { use crate::c::g; fn t() { g() } }",
        ),
        ("x/src/c.rs", "use crate::a::{self, Thing as T}; use super::d::*; pub fn g(t: T) { a::own(); h() }"),
        ("x/src/d.rs", "pub fn h() { super::b::f() } mod deeper { fn i() { super::super::c::g() } }"),
    ];
    let source = |(path, code): (&str, &str)| Source { path: path.into(), text: code.into(), code: code.into() };
    Crate::from_sources("x", files.map(source).into())
}

#[test]
fn paths_lead_to_the_file_that_has_the_item() {
    let krate = example();
    let named =
        |files: &BTreeSet<usize>| -> Vec<&str> { files.iter().map(|file| &krate.files[*file].path[6..]).collect() };
    let edges: Vec<Vec<&str>> = krate.edges().iter().map(named).collect();
    let expected: [&[&str]; 6] =
        [&[], &[], &["a/mod.rs"], &["a/inner.rs"], &["a/mod.rs", "a/inner.rs", "d.rs"], &["b.rs", "c.rs"]];
    assert_eq!(edges, expected);
    assert_eq!(krate.circles(), [["x/src/c.rs", "x/src/d.rs"]]);
}

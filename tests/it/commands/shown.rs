//! The commands that a page shows: in its blocks for a shell, in the examples of help, and in its
//! prose.

/// A command of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    pub(super) page: String,
    pub(super) line: usize,
    /// The command, without what a shell does with its result.
    pub(super) text: String,
    /// The comment behind it.
    pub(super) comment: String,
    /// What the page shows that it prints; nothing where the page does not say.
    pub(super) prints: Vec<String>,
}

/// The commands of a page, and the blocks of text that show none, each by line and first line.
pub(super) fn of_page(page: &str, text: &str) -> (Vec<Shown>, Vec<(usize, String)>) {
    let (mut commands, mut others) = (Vec::new(), Vec::new());
    for block in blocks(page, text) {
        let first = block.lines.first().copied().unwrap_or_default(); // empty: it shows nothing
        let is_help = block.lines.iter().any(|line| line.starts_with("Usage: fanwise"));
        if block.kind == "sh" || is_command(first) {
            commands.extend(of_shell(page, &block));
        } else if is_help {
            commands.extend(of_help(page, &block));
        } else {
            others.push((block.line, first.to_owned()));
        }
    }
    commands.extend(of_prose(page, text));
    (commands, others)
}

/// A fenced block of a page for a shell, or of text.
struct Block<'a> {
    kind: &'a str,
    /// The line of the page that its first line is.
    line: usize,
    lines: Vec<&'a str>,
}

/// The kinds of blocks; all but the first two show no commands.
const KINDS: [&str; 7] = ["sh", "text", "fan", "json", "python", "r", "rust"];

fn blocks<'a>(page: &str, text: &'a str) -> Vec<Block<'a>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut is_open = false;
    for (i, line) in text.lines().enumerate() {
        let begins = line.trim_start_matches(['>', ' ', '\t']);
        if !is_open && (begins.starts_with("```") || begins.starts_with("~~~")) {
            let kind = line.strip_prefix("```").and_then(|kind| kind.split(',').next());
            let is_known = kind.is_some_and(|kind| KINDS.contains(&kind));
            assert!(is_known, "{page}:{}: `{line}` begins no block that a test knows", i + 1);
        }
        match (line.strip_prefix("```"), is_open) {
            (Some(kind), false) => blocks.push(Block { kind, line: i + 2, lines: Vec::new() }),
            (Some(_), true) => {}
            (None, true) => blocks.last_mut().unwrap().lines.push(line),
            (None, false) => continue,
        }
        is_open = !(is_open && line.starts_with("```"));
    }
    blocks.retain(|block| KINDS[..2].contains(&block.kind));
    blocks
}

/// How a line begins that a shell takes.
const PROGRAMS: [&str; 6] = ["$ ", "cargo ", "tests/", "tar ", "python3 ", "FANWISE_"];

/// True if a line is a command, and not the first of a graph.
fn is_command(line: &str) -> bool {
    let own = line.strip_prefix("fanwise ");
    own.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_lowercase()))
        || PROGRAMS.iter().any(|program| line.starts_with(program))
}

/// The commands of a block of them. Behind one that begins with `$` stands what it prints.
fn of_shell(page: &str, block: &Block<'_>) -> Vec<Shown> {
    let mut found: Vec<Shown> = Vec::new();
    let mut lines = (block.line..).zip(&block.lines);
    while let Some((at, line)) = lines.next() {
        let begins = line.strip_prefix("$ ");
        if begins.is_none() && block.lines[0].starts_with("$ ") {
            found.last_mut().unwrap().prints.push((*line).to_owned());
            continue;
        }
        let mut text = begins.unwrap_or(line).to_owned(); // without `$` the line is the command
        if text.trim().is_empty() || text.starts_with('#') {
            continue;
        }
        let known = block.kind == "sh" || begins.is_some() || is_command(&text);
        assert!(known, "{page}:{at}: `{text}` is no command of a block of commands");
        join(&mut text, &mut lines);
        found.push(command(page, at, &text));
    }
    found
}

/// The examples of a help.
fn of_help(page: &str, block: &Block<'_>) -> Vec<Shown> {
    let mut found = Vec::new();
    let mut lines = (block.line..).zip(&block.lines);
    while let Some((at, line)) = lines.next() {
        if let Some(text) = line.strip_prefix("  ").filter(|text| is_command(text)) {
            let mut text = text.to_owned();
            join(&mut text, &mut lines);
            found.push(command(page, at, &text));
        }
    }
    found
}

/// Adds the lines that go on a command.
fn join<'a>(text: &mut String, lines: &mut impl Iterator<Item = (usize, &'a &'a str)>) {
    while let Some(before) = text.strip_suffix('\\') {
        let next = lines.next().map_or("", |(_, line)| line.trim()); // the end ends it, too
        *text = format!("{} {next}", before.trim_end());
    }
}

fn command(page: &str, line: usize, text: &str) -> Shown {
    let (text, comment) = text.split_once(" # ").unwrap_or((text, "")); // without a comment
    let text = text.split(" | ").next().and_then(|text| text.split(" > ").next()).unwrap();
    Shown {
        page: page.to_owned(),
        line,
        text: text.trim().to_owned(),
        comment: comment.trim().to_owned(),
        prints: Vec::new(),
    }
}

/// How code in prose begins that is a command.
const IN_PROSE: [&str; 3] = ["fanwise", "cargo", "pip"];

/// The commands in the prose of a page: code that begins with one of [`IN_PROSE`].
fn of_prose(page: &str, text: &str) -> Vec<Shown> {
    let (mut prose, mut is_code) = (String::new(), false);
    for line in text.lines() {
        let fence = line.starts_with("```");
        prose += if fence || is_code { "" } else { line };
        prose.push('\n');
        is_code ^= fence;
    }
    let mut found = Vec::new();
    let mut line = 1;
    for paragraph in prose.split_inclusive("\n\n") {
        for (i, part) in paragraph.split('`').enumerate() {
            let first = part.split_whitespace().next();
            if i % 2 == 1 && first.is_some_and(|first| IN_PROSE.contains(&first)) {
                let words: Vec<&str> = part.split_whitespace().collect();
                // Graphs begin with `fanwise 1`.
                let is_graph = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
                let is_command = words.get(1).is_some_and(|word| !is_graph(word));
                found.extend(is_command.then(|| command(page, line, &words.join(" "))));
            }
            line += part.matches('\n').count();
        }
    }
    found
}

#[test]
fn commands_of_blocks_of_help_and_of_prose_are_found() {
    let page = "A `fanwise zoo\nmlp` of `fanwise`.\n\n```text\nfanwise run a --gpus 2   # two\n\
        # more\nfanwise fit b \\\n  --epochs 3 | less\n```\n\n```text\n$ fanwise explain E1\nwhat\n\
        $ cargo x\n```\n\n```text\nUsage: fanwise check\n  fanwise check c > d\n  other\n```\n\
        ```text\nfanwise 1\n```\n```rust\nfanwise x\n```\n`x` and `fanwise y`, `fanwise 1 z`, \
        `cargo\nz`\n";
    let (found, others) = of_page("p", page);
    let one = |line, text: &str, comment: &str, prints: &[&str]| Shown {
        page: "p".to_owned(),
        line,
        text: text.to_owned(),
        comment: comment.to_owned(),
        prints: prints.iter().map(|line| (*line).to_owned()).collect(),
    };
    assert_eq!(
        found,
        [
            one(5, "fanwise run a --gpus 2", "two", &[]),
            one(7, "fanwise fit b --epochs 3", "", &[]),
            one(12, "fanwise explain E1", "", &["what"]),
            one(14, "cargo x", "", &[]),
            one(19, "fanwise check c", "", &[]),
            one(1, "fanwise zoo mlp", "", &[]),
            one(28, "fanwise y", "", &[]),
            one(28, "cargo z", "", &[]),
        ]
    );
    assert_eq!(others, [(23, "fanwise 1".to_owned())]);
}

#[test]
fn blocks_of_no_known_kind_are_told() {
    for fence in ["```bash", "```", "   ```sh", "~~~", "> ```text", "```sh2"] {
        let page = format!("a\n\n{fence}\nfanwise x\n```\n");
        let told = std::panic::catch_unwind(|| of_page("p", &page)).unwrap_err();
        let told = told.downcast::<String>().unwrap();
        assert!(told.starts_with("p:3: `"), "{told}");
    }
}

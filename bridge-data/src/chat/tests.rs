//! Templates against the ids and masks that transformers makes of the same conversations.

use std::path::Path;

use serde_json::json;

use crate::tokenizer::HuggingFaceTokenizer;

use super::*;

fn template(source: &str) -> ChatTemplate {
    let special = json!({ "bos_token": "<s>", "eos_token": "</s>" });
    ChatTemplate::new(Some(source.to_owned()), None, special.as_object().cloned().expect("an object"))
        .expect("valid template")
}

fn conversation(messages: &Value) -> Conversation {
    Conversation::from_json(&json!({ "messages": messages })).expect("a conversation")
}

#[test]
fn ids_and_masks_are_those_of_transformers() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat");
    let mut compared = 0;
    for folder in std::fs::read_dir(root).expect("fixtures") {
        let folder = folder.expect("an entry").path();
        let tokenizer = HuggingFaceTokenizer::load(&folder).expect("a tokenizer");
        let template = ChatTemplate::load(&folder).expect("readable").expect("a template");
        let cases = std::fs::read_to_string(folder.join("cases.jsonl")).expect("cases");
        for (number, line) in cases.lines().enumerate() {
            let place = format!("{}:{}", folder.display(), number + 1);
            let case: Value = serde_json::from_str(line).expect("JSON");
            let conversation = Conversation::from_json(&case).expect("a conversation");
            let encoded = template.encode(&conversation, &tokenizer);
            if let Some(reason) = case["error"].as_str() {
                let error = encoded.expect_err(&place).to_string();
                assert!(error.contains(reason), "{place}: {error}, expected {reason}");
                continue;
            }
            let encoded = encoded.unwrap_or_else(|error| panic!("{place}: {error}"));
            let prompt = template.render(&conversation, Ending::GenerationPrompt).expect("rendered");
            assert_eq!(prompt, case["generation_prompt_text"], "{place}");
            assert_eq!(json!(encoded.ids), case["ids"], "{place}");
            let mask = encoded.assistant_mask.ok().map(|mask| mask.into_iter().map(u8::from).collect::<Vec<_>>());
            assert_eq!(json!(mask), case["assistant_mask"], "{place}");
            compared += 1;
        }
    }
    assert!(compared >= 25, "{compared} conversations");
}

#[test]
fn values_are_written_as_python_writes_them() {
    let message = json!([{ "role": "user", "content": "é", "flag": true, "e": { "none": null }, "d": { "b": [1, 2.5], "a": {} } }]);
    let text = |source: &str| template(source).render(&conversation(&message), Ending::Complete).expect("rendered");
    assert_eq!(text("{{ messages[0].d | tojson }}"), r#"{"b": [1, 2.5], "a": {}}"#);
    assert_eq!(text("{{ messages[0].d | tojson(sort_keys=true) }}"), r#"{"a": {}, "b": [1, 2.5]}"#);
    assert_eq!(text("{{ messages[0].d.b | tojson(indent=2) }}"), "[\n  1,\n  2.5\n]");
    assert_eq!(text("{{ messages[0].content | tojson(ensure_ascii=true) }}"), r#""\u00e9""#);
    assert_eq!(text("{{ messages[0].flag }} {{ messages[0].e.none }} {{ bos_token }}"), "True None <s>");
    // Dictionaries that a template makes keep the order in which they are written.
    assert_eq!(text("{{ {'name': 'w', 'arguments': {}} | tojson }}"), r#"{"name": "w", "arguments": {}}"#);
    assert_eq!(
        text("{{ dict(name=1, args=2) | tojson }} {{ {'b': 1, 'a': 2} | list | join }}"),
        r#"{"name": 1, "args": 2} ba"#
    );
    assert_eq!(text("{{ '#%d' | format(3) }} {{ {'user': 'Human'}.get('user', 'x') }} {{ 'abc'[:1] }}"), "#3 Human a");
    assert_eq!(text("{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{% endfor %}."), ".");
}

/// The expected texts are those of transformers 5 with Jinja 3.1.
/// Services write `"content": null` beside calls. transformers leaves such keys of messages out.
#[test]
fn keys_of_messages_that_are_null_are_left_out() {
    let call = json!([{ "function": { "name": "w", "arguments": {} } }]);
    let messages = json!([{ "role": "assistant", "content": null, "tool_calls": call, "name": null }]);
    let source =
        "{% for m in messages %}{{ m.content }}<{{ m.tool_calls[0].function.name }}>{{ 'name' in m }}{% endfor %}";
    let text = template(source).render(&conversation(&messages), Ending::Complete).expect("rendered");
    assert_eq!(text, "<w>False");
}

#[test]
fn containers_and_numbers_are_printed_as_python_prints_them() {
    let d = json!({
        "a": "it's", "b": null, "c": [1, 2.5, true, 1.5e-7, 1e16, 0.0001, 123456789012345.0, -0.0],
        "d": {
            "q": "say \"x\"", "both": "'\"", "esc": "\n\t\\\r\u{1}\u{7f}\u{a0}\u{200d}\u{301}é😀\u{feff}", "empty": {}, "l": []
        }
    });
    let message = json!([{ "role": "user", "content": "q", "d": d }]);
    let text = |source: &str| template(source).render(&conversation(&message), Ending::Complete).expect("rendered");
    let list = "[1, 2.5, True, 1.5e-07, 1e+16, 0.0001, 123456789012345.0, -0.0]";
    let esc = "\\n\\t\\\\\\r\\x01\\x7f\\xa0\\u200d\u{301}é😀\\ufeff";
    let all = format!(
        "{{'a': \"it's\", 'b': None, 'c': {list}, 'd': {{'q': 'say \"x\"', 'both': '\\'\"', 'esc': '{esc}', 'empty': {{}}, 'l': []}}}}"
    );
    assert_eq!(text("{{ messages[0].d }}"), all);
    assert_eq!(text("{{ messages[0].d | string }}"), all);
    assert_eq!(text("{{ '' ~ messages[0].d.c ~ none ~ true ~ 1.5 }}"), format!("{list}NoneTrue1.5"));
    assert_eq!(text("{{ messages[0].d.c | join('|') }}"), "1|2.5|True|1.5e-07|1e+16|0.0001|123456789012345.0|-0.0");
    assert_eq!(text("{{ '%s %s' | format(messages[0].d.b, messages[0].d.c[:3]) }}"), "None [1, 2.5, True]");
    assert_eq!(text("{{ messages[0].d.c[3] }} {{ '' ~ messages[0].nope }}."), "1.5e-07 .");
    assert_eq!(text("{{ messages[0].d.c | tojson }}"), list.replace("True", "true"));
}

#[test]
fn what_is_refused_says_why() {
    assert!(Conversation::from_json(&json!({ "text": 1 })).expect_err("no messages").contains("messages"));
    assert!(Conversation::from_json(&json!({ "messages": [{}] })).expect_err("no role").contains("messages[0]"));
    let error = ChatTemplate::new(Some("{% for %}".to_owned()), None, Map::new()).expect_err("malformed");
    assert!(error.contains("line 1"), "{error}");
}

#[test]
fn the_end_of_a_turn_is_found() {
    let source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}";
    assert_eq!(template(source).end_of_turn(), "<|im_end|>\n");
    assert!(
        template(source).ends_turns() && !template("{% for m in messages %}{{ m.content }}{% endfor %}").ends_turns()
    );
    assert_eq!(template("{{ raise_exception('no') }}").end_of_turn(), "");
}

#[test]
fn templates_are_found_where_folders_have_them() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("written");
    let load = || ChatTemplate::load(folder.path()).expect("readable");
    assert!(load().is_none());
    write(
        "tokenizer_config.json",
        r#"{"chat_template": [{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}]}"#,
    );
    let text = |template: Option<ChatTemplate>| {
        template.expect("a template").render(&Conversation::default(), Ending::Complete).expect("rendered")
    };
    assert_eq!(text(load()), "d");
    write("chat_template.jinja", "{{ bos_token }}j");
    write("special_tokens_map.json", r#"{"bos_token": {"content": "<b>"}}"#);
    assert_eq!(text(load()), "<b>j");
    write("chat_template.jinja", "{{");
    let error = ChatTemplate::load(folder.path()).expect_err("malformed").to_string();
    assert!(error.contains("chat_template.jinja"), "{error}");
}

#[test]
fn hostile_templates_end_within_a_second() {
    let endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% for k in range(99999) %}";
    let ends = "{% endfor %}{% endfor %}{% endfor %}";
    let hostile = [
        format!("{endless}{ends}"),
        format!("{endless}{}{ends}", "much text ".repeat(10_000)),
        format!("{{% set n = namespace(s='x') %}}{endless}{{% set n.s = n.s ~ n.s %}}{ends}"),
        format!("{{% set n = namespace(s='x') %}}{endless}{{% set n.s = n.s + n.s %}}{ends}"),
        format!("{{% set n = namespace(s='x') %}}{endless}{{% set n.s = n.s * 9 %}}{ends}"),
        format!("{{% set n = namespace(s='x') %}}{endless}{{% set n.s = [n.s, n.s] %}}{ends}{{{{ n.s }}}}"),
        format!("{{% set n = namespace(s='x') %}}{endless}{{% set n.s = [n.s] %}}{ends}{{{{ n.s | string }}}}"),
        format!("{{% set n = namespace(s='x') %}}{endless}{{% set n.s = n.s | replace('x', 'xx') %}}{ends}"),
        format!("{{% set n = namespace(s='x') %}}{endless}{{% set n.s = n.s.replace('', n.s) %}}{ends}"),
        format!(
            "{{% set n = namespace(s='x') %}}{endless}{{% set n.s %}}{{{{ n.s }}}}{{{{ n.s }}}}{{% endset %}}{ends}"
        ),
        "{% set n = namespace() %}{% set n.n = n %}{{ n }}".to_owned(),
        "{% set n = namespace() %}{% set n.n = n %}{{ raise_exception(n) }}".to_owned(),
        "{% macro f() %}{{ f() }}{{ f() }}{% endmacro %}{{ f() }}".to_owned(),
        "{{ 'x' * 99999999 * 99999999 }}".to_owned(),
        "{% for i in 'x' * 99999999 %}{% endfor %}".to_owned(),
        "{{ ('x' * 9999999) | join('y' * 9999999) }}".to_owned(),
        "{{ ('y' * 9999999).join('x' * 9999999) }}".to_owned(),
        "{{ ('\\n' * 9999999) | indent(99999) }}{{ ('\\n' * 9999999) | indent(width=99999) }}".to_owned(),
        "{{ '%999999999d' | format(1) }}".to_owned(),
        "{{ [1] | batch(999999999, 'x') }}".to_owned(),
        "{{ [[[[1]]]] | tojson(indent=999999999) }}".to_owned(),
        "{{ strftime_now('%99999d') }}".to_owned(),
        "{% set a = range(9999) | list %}{% for i in range(9999) %}{% set b = a | sort(reverse=true) | unique | list %}{% endfor %}".to_owned(),
        "{% set a = ['ab' * 99] * 99 %}{% for i in range(99999) %}{% set b = a | tojson | length %}{% endfor %}".to_owned(),
        "{% for i in range(99999) %}{% set b = strftime_now('%c' * 9999) %}{% endfor %}".to_owned(),
        "{{ ([1] * 99999999) | list }}".to_owned(),
        "(".repeat(500_000) + &"{{".repeat(100) + &"(".repeat(100_000),
        format!("{{{{ {}1 }}}}", "-".repeat(100_000)),
        format!("{{{{ {}1 }}}}", "not ".repeat(100_000)),
        format!("{{{{ x{} }}}}", ".a".repeat(100_000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(100_000), ")".repeat(100_000)),
        "{% if true %}".repeat(30_000) + &"{% endif %}".repeat(30_000),
        "{% set n = namespace(s='x') %}{% for i in range(999) %}{% for j in range(999) %}{% set n.s = [n.s] %}{% endfor %}{% endfor %}".to_owned(),
        "{% set n = namespace(s='x') %}{% for i in range(999) %}{% for j in range(999) %}{% set n.s = [n.s] | map('first') %}{% set n.s = [n.s] | batch(1) %}{% endfor %}{% endfor %}".to_owned(),
    ];
    for source in &hostile {
        let started = computed();
        let shown: String = source.chars().take(200).collect();
        if let Ok(template) = ChatTemplate::new(Some(source.clone()), None, Map::new()) {
            let rendered = template.render(&Conversation::default(), Ending::Complete);
            rendered.map(|text| text.len()).expect_err(&shown);
        }
        // CPU time of this thread, which excludes other load of the machine.
        let computed = computed().saturating_sub(started);
        // The CPU clock of a virtual machine may include stolen time.
        assert!(computed.as_millis() < 2000, "{computed:?}: {shown}");
    }
}

#[test]
fn statements_and_expressions_of_all_kinds_are_rendered() {
    let messages =
        json!([{ "role": "user", "content": "Hi \"there\"\\n" }, { "role": "assistant", "content": "a\tb" }]);
    let cases = [
        ("{% set (a, b) = (1, 2) %}{{ a }}{{ -b }}{{ 2 ** 3 // 3 }}", "1-22"),
        ("{% for k, v in {'x': 1.5, 'y': none}.items() %}{{ k }}={{ v }};{% else %}none{% endfor %}", "x=1.5;y=None;"),
        ("{% for m in messages if m.role != 'user' %}{{ loop.index }}{{ m['content'] }}{% endfor %}", "1a\tb"),
        ("{% macro f(a, b='x') %}{{ a }}{{ b }}{{ caller() }}{% endmacro %}{% call f(1) %}c{% endcall %}", "1xc"),
        ("{% set t | upper %}a{{ 'b' }}{% endset %}{{ t }}{% filter lower | trim %} ABC {% endfilter %}", "ABabc"),
        ("{{ messages[0].content[::-1] }}|{{ messages[-1:][0].role }}", "n\\\"ereht\" iH|assistant"),
        ("{{ 'a' if 1 < 2 <= 2 and not (3 in [1]) else 'b' }}{{ 'x' if false }}", "a"),
        ("{{ messages | map(attribute='role') | join(', ') }}", "user, assistant"),
        ("{{ 4 is divisibleby(2) }}{{ x is defined }}{{ 'a' is not none }}", "TrueFalseTrue"),
        (
            "  {% if true %}\n  {%- for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }} {% endfor %}\n{% endif %}",
            "0 2 ",
        ),
        (
            "{% for i in [[1, [2]], 3] recursive %}{% if i is iterable %}({{ loop(i) }}){% else %}{{ i }}{% endif %}{% endfor %}",
            "(1(2))3",
        ),
        ("{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}\n", "3"),
    ];
    for (source, expected) in cases {
        let text = template(source).render(&conversation(&messages), Ending::Complete);
        assert_eq!(text.unwrap_or_else(|error| panic!("{source}: {error}")), expected, "{source}");
    }
    let error =
        template("a\n{% if true %}\n\n{{ nothing() }}{% endif %}").render(&Conversation::default(), Ending::Complete);
    assert!(error.expect_err("no such function").to_string().contains("line 4"));
}

/// The expected texts are those of transformers 5 with Jinja 3.1; `None` is an error.
#[test]
fn templates_mean_as_in_python() {
    let messages = json!([{ "role": "user", "content": " Hi ", "l": ["x", null], "d": { "a": "b" } }]);
    let cases = [
        ("{{ '' and 1 }}|{{ 0 or 'x' }}|{{ none is iterable and none | length > 0 }}", Some("|x|False")),
        (
            "{{ nope | length }}{{ nope | list }}{{ 'a' in nope }}{{ nope is sequence }}{{ none[1:] }}",
            Some("0[]FalseTrue"),
        ),
        ("{{ nope | tojson }}", None),
        ("{{ nope.x }}", None),
        ("{{ nope + 'a' }}", None),
        ("{{ 1 < 'a' }}", None),
        ("{{ messages[0].l | upper }}{{ messages[0].d | trim | replace(\"'\", '`') }}", Some("['X', NONE]{`a`: `b`}")),
        ("{{ 'a,b,c'.rsplit(',', 1) }}{{ 'a b c'.split(maxsplit=1) }}", Some("['a,b', 'c']['a', 'b c']")),
        ("{{ 'a-b'.partition('-') }}{{ 'ab'.removeprefix('a') }}{{ 'abab'.find('a', 1) }}", Some("('a', '-', 'b')b2")),
        ("{{ '%s-%03d' % ('a', 3) }}{{ '{:>4}|{!r}'.format(1, 'x') }}{{ 'x' | int }}", Some("a-003   1|'x'0")),
        (
            "{{ -7 // 2 }} {{ -7 % 3 }} {{ 2 ** 70 }} {{ 2.5 | round }} {{ 7 / 2 }}",
            Some("-4 2 1180591620717411303424 2.0 3.5"),
        ),
        (
            "{{ (1, 2) }}{{ (1,) }}{{ {'a': 1}.items() }}{{ [1] == (1,) }}",
            Some("(1, 2)(1,)dict_items([('a', 1)])False"),
        ),
        ("{{ '\\x41\\q\\'' }}{{ 'a' 'b' }}", Some("A\\q'ab")),
        (
            "{{ [3, 1] | sort }}{{ {'b': 1, 'a': 2} | dictsort }}{{ [1, 2, 3] | batch(2) | list }}",
            Some("[1, 3][('a', 2), ('b', 1)][[1, 2], [3]]"),
        ),
        ("{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ f() }}", Some("2")),
        ("{% for i in [1, 2] %}{% set x = i %}{% endfor %}{{ x is defined }}", Some("False")),
        ("{{ [1].append(2) }}", None),
        ("{{ {'items': 1}['items'] }}{{ [1] | map('foo') is defined }}", Some("1True")),
        ("a\r\n{% if true %}\r\nb\r\n{% endif %}\r\n", Some("a\nb\n")),
        ("{% do 1 %}", None),
    ];
    are_rendered(&messages, &cases);
}

/// Renders each template; `None` is an error.
fn are_rendered(messages: &Value, cases: &[(&str, Option<&str>)]) {
    for (source, expected) in cases {
        let made = ChatTemplate::new(Some((*source).to_owned()), None, Map::new());
        let made = made.and_then(|template| {
            template.render(&conversation(messages), Ending::Complete).map_err(|error| error.to_string())
        });
        assert_eq!(made.as_deref().ok(), *expected, "{source}: {made:?}");
    }
}

/// The expected texts are those of transformers 4.57 with Jinja 3.1 on Python 3.12.
#[test]
fn slices_of_other_values_are_errors_unless_they_are_constants() {
    let cases = [
        ("{% set y = none %}{{ y[1:] }}", None),
        ("{{ messages[0][:2] }}", None),
        ("{% set n = 7 %}{{ n[1:] }}", None),
        ("{{ messages['a':] }}", None),
        ("{{ messages[1.5:] }}", None),
        ("{{ messages[:nope] }}", None),
        ("{{ messages[0].items()[1:] }}", None),
        ("{% set n = 7 %}{{ [n][1.5:] }}", None),
        ("{{ none[1:] }}{{ none[1:] ~ 'a' }}{{ [1, 2]['a':] }}{{ {'a': 1}[1:] }}{{ 5[1:] or 'x' }}", Some("ax")),
        ("{% set l = [1, 2] %}{{ l[true:] }}{{ l[-1:] }}{{ l[none:1] }}", Some("[2][2][1]")),
    ];
    are_rendered(&json!([{ "role": "user", "content": "a" }]), &cases);
}

/// The expected texts are those of transformers 4.57 with Jinja 3.1 on Python 3.12.
#[test]
fn loops_end_as_in_python() {
    let cases = [
        ("{% for m in [1, 2] %}{% if m %}{% continue %}{% endif %}x{% else %}NONE{% endfor %}", Some("NONE")),
        ("{% for m in [1, 2] %}{% break %}{% else %}NONE{% endfor %}", Some("NONE")),
        ("{% for m in [1, 2] %}{% if loop.first %}{% continue %}{% endif %}x{% else %}NONE{% endfor %}", Some("x")),
        ("{% for m in [1, 2] %}x{% if loop.last %}{% break %}{% endif %}{% else %}NONE{% endfor %}", Some("xx")),
        ("{% for a in [1, 2] %}{{ a }}{% for b in [] %}{% else %}{% break %}{% endfor %}-{% endfor %}", Some("1")),
        (
            "{% for x in [3, 1, 2] %}{% set q = 0 %}{% set q %}y{% if x == 1 %}{% continue %}{% endif %}{% endset %}{{ x }}{{ q }}{% endfor %}",
            Some("3y2y"),
        ),
        (
            "{% for x in [3, 1, 2] %}{% filter upper %}a{% if x == 1 %}{% break %}{% endif %}{% endfilter %}{{ x }}{% endfor %}",
            Some("A3"),
        ),
        ("{% for loop in [1] %}{% endfor %}", None),
        ("{% for a, (b, loop) in [(1, (2, 3))] %}{% endfor %}", None),
        ("{% set loop = 1 %}{{ loop }}", Some("1")),
    ];
    are_rendered(&json!([]), &cases);
}

/// The expected texts are those of transformers 4.57 with Jinja 3.1 on Python 3.12.
#[test]
fn texts_are_changed_as_in_python() {
    let cases = [
        ("{{ '\x7f\x1f~é' | tojson(ensure_ascii=true) }}", Some("\"\\u007f\\u001f~\\u00e9\"")),
        (
            "{{ 'ß'.title() }}{{ 'ß'.capitalize() }}{{ 'ß'|capitalize }}{{ 'ﬁx'.title() }}{{ 'ǆa'.title() }}{{ 'ǅ'.istitle() }}{{ 'ǅ'.swapcase() }}{{ 'ß'|title }}",
            Some("SsSsSsFixǅaTrueǅSS"),
        ),
        (
            "{{ 'ΑΣ b'.title() }}{{ 'ΑΣ'.capitalize() }}{{ '日a'.title() }}{{ 'აb'.title() }}{{ 'ǆ'.capitalize() }}{{ 'a1b'.title() }}",
            Some("Ας BΑς日AაbǅA1B"),
        ),
        (
            "{{ 'ﬁ'.casefold() }} {{ 'ΑΣς'.casefold() }} {{ 'ẞ'.casefold() }} {{ 'ı'.casefold() }} {{ 'ꭰ'.casefold() }}",
            Some("fi ασσ ss ı Ꭰ"),
        ),
        (
            "{{ 'Ⅷ'.isalpha() }} {{ '一'.isnumeric() }} {{ '一'.isalnum() }} {{ 'Ⅷ'.isalnum() }} {{ '²'.isdecimal() }} {{ '²'.isdigit() }} {{ '᠑'.isdecimal() }} {{ 'ि'.isalpha() }} {{ '½'.isnumeric() }}",
            Some("False True True True False True True False True"),
        ),
        ("{{ '٣'|int + '３'|int }} {{ '٣.5'|float }} {{ ' -𝟗'|int }}", Some("6 3.5 -9")),
        (
            "{{ '{:c}|{:5c}|{:n}|{:n}'.format(65, 65, 5, 2.5) }}|{{ '{:05}'.format('a') }}|{{ '{:0>5}{:<05}'.format('a', 'b') }}",
            Some("A|    A|5|2.5|a0000|0000ab0000"),
        ),
        ("{{ '{!a}'.format('é\\'😀') }}|{{ '%a' % 'é' }}", Some("\"\\xe9'\\U0001f600\"|'\\xe9'")),
        ("{{ '{0[0]}{}'.format([1]) }}", Some("1[1]")),
        ("{{ '{0}{}'.format(1, 2) }}", None),
        ("{{ '{}{0}'.format(1, 2) }}", None),
        ("{{ '{[0]}'.format([1]) }}", None),
        ("{{ '{.real}'.format(1) }}", None),
        ("{{ '{:=5}'.format('a') }}", None),
        ("{{ '{:+c}'.format(65) }}", None),
        (
            "{% set g = ['1', '3', '5'] | map('string') %}{{ '3' in g }}{{ g | list }}{{ '3' in g }}{{ g | list }}",
            Some("True['5']False[]"),
        ),
        ("{{ [] is filter }}", None),
        ("{{ {} is test }}", None),
        ("{{ 'aa'.replace('a', 'b', count=1) }}", None),
        (
            "{{ ('<%s>'|safe) % '&' }}{{ ('<%s>'|safe)|format('&') }}{{ ('<{}>'|safe).format('&') }}{{ ('<'|safe).join(['&', 'a']) }}{{ ('<d'|safe).replace('<', '&') }}",
            Some("<&amp;><&amp;><&amp;>&amp;<a&amp;d"),
        ),
        (
            "{{ (' <'|safe)|trim is escaped }}{{ ('<'|safe)|upper is escaped }}{{ ('<'|safe)|title is escaped }}{{ ('< a'|safe).split()[0] is escaped }}{{ ('<%d>'|safe) % 5 }}",
            Some("TrueTrueFalseTrue<5>"),
        ),
        ("{{ 'a long-word here and there' | wordwrap(8) }}", Some("a long-\nword\nhere and\nthere")),
        ("{{ 5 | wordwrap }}", None),
    ];
    are_rendered(&json!([]), &cases);
}

/// The text of a conversation, with the assistant's generated text in brackets.
fn bracketed(source: &str, messages: &Value) -> String {
    let template = template(source);
    let conversation = conversation(messages);
    let text = template.render(&conversation, Ending::Complete).expect("rendered");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat/turns_unmarked");
    let tokenizer = HuggingFaceTokenizer::load(&folder).expect("a tokenizer");
    let mut tokens = Vec::new();
    let encoded = tokenizer.encode_with_offsets(&text, &mut |_, bytes| tokens.push(bytes));
    encoded.expect("ids");
    let mask = template.encode(&conversation, &tokenizer).expect("encoded").assistant_mask.expect("a mask");
    let (mut shown, mut is_in) = (String::new(), false);
    for (bytes, says) in tokens.iter().zip(mask) {
        if says != is_in {
            shown.push(if says { '[' } else { ']' });
            is_in = says;
        }
        shown.push_str(&text[bytes.clone()]);
    }
    if is_in { shown + "]" } else { shown }
}

#[test]
fn turns_of_thinking_templates_are_told_apart() {
    let source = "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' and '</think>' in m.content and not loop.last %}\
                  {{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}\
                  {% if add_generation_prompt %}<|assistant|><think>{% endif %}";
    let messages = json!([
        { "role": "user", "content": "a" }, { "role": "assistant", "content": "<think>b</think>c" },
        { "role": "user", "content": "d" }, { "role": "assistant", "content": "<think>e</think>f" },
    ]);
    let expected = "<|user|>a<|end|><|assistant|>[c<|end|>]<|user|>d<|end|><|assistant|><think>[e</think>f<|end|>]";
    assert_eq!(bracketed(source, &messages), expected);
}

#[test]
fn the_role_that_follows_ends_a_turn_without_an_end() {
    let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}\
                  {% if add_generation_prompt %}<|assistant|>{% endif %}";
    let messages = json!([
        { "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }, { "role": "user", "content": "c" },
    ]);
    assert_eq!(bracketed(source, &messages), "<|user|>a<|assistant|>[b<|user|>]c");
}

#[test]
fn replies_of_tools_within_a_turn_are_not_generated() {
    let source = "{% for m in messages %}{% if m.role != 'tool' %}<{{ m.role }}>{{ m.content }}\
                  {% for at in range(loop.index0 + 1, messages | length) %}{% set next = messages[at] %}\
                  {% if next.role == 'tool' %}({{ next.content }}){% else %}{% break %}{% endif %}{% endfor %}</>{% endif %}{% endfor %}\
                  {% if add_generation_prompt %}<assistant>{% endif %}";
    let messages = json!([
        { "role": "user", "content": "a" }, { "role": "assistant", "content": "b" }, { "role": "tool", "content": "t" },
    ]);
    assert_eq!(bracketed(source, &messages), "<user>a</><assistant>[b](t)[</>]");
}

#[test]
fn only_a_role_ends_a_turn() {
    // A reply of a tool in brackets.
    let tools = "{% for m in messages %}{{ '[' + m.content + ']' if m.role == 'tool' else m.content }}{% endfor %}";
    let said = |role: &str, content: &str| json!({ "role": role, "content": content });
    let messages = json!([said("user", "?"), said("assistant", "b"), said("tool", "R"), said("assistant", "c")]);
    assert_eq!(bracketed(tools, &messages), "?[b][R][c]");
    // Text of a user that begins like a role.
    let lines = "{% for m in messages %}{{ m.content + '\n' }}{% endfor %}";
    let messages = json!([said("user", "?"), said("assistant", "a"), said("user", "<b>bold</b>")]);
    assert_eq!(bracketed(lines, &messages), "?\n[a\n]<b>bold</b>\n");
    // Rounds as ChatGLM counts them, before a text that is the number.
    let rounds = "{% for m in messages %}{% if m.role == 'user' %}[Round {{ loop.index0 // 2 }}]{{ m.content }}:{% else %}{{ m.content }}{% endif %}{% endfor %}";
    let messages = json!([said("user", "0"), said("assistant", "a"), said("user", "1")]);
    assert_eq!(bracketed(rounds, &messages), "[Round 0]0:[a[Round 1]]1:");
}

#[test]
fn answers_begin_after_the_blanks_of_a_template() {
    let source = "{% for m in messages %}{% if m.role == 'user' %}{{ '<u>' + m.content + '<a>' }}{% else %}{{ '\t\t' + m.content + '<e>' }}{% endif %}{% endfor %}{{ '\n' }}";
    let messages = json!([
        { "role": "user", "content": "?" }, { "role": "assistant", "content": "b" },
        { "role": "user", "content": "!" }, { "role": "assistant", "content": "c" },
    ]);
    assert_eq!(bracketed(source, &messages), "<u>?<a>\t\t[b<e>]<u>!<a>\t\t[c<e>\n]");
}

#[test]
fn a_conversation_is_encoded_where_its_mask_fails() {
    let source = "{% for m in messages %}{{ m.content }}{% endfor %}{{ messages[-1].role }}";
    let messages = json!([{ "role": "assistant", "content": "a" }, { "role": "user", "content": "b" }]);
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/chat/turns_unmarked");
    let tokenizer = HuggingFaceTokenizer::load(&folder).expect("a tokenizer");
    let encoded = template(source).encode(&conversation(&messages), &tokenizer).expect("encoded");
    assert_eq!(encoded.ids, tokenizer.encode("abuser").expect("ids"));
    let reason = encoded.assistant_mask.expect_err("no mask");
    assert!(reason.contains("without message 1") && reason.contains("has no such item"), "{reason}");
}

#[test]
fn arguments_that_are_null_are_none() {
    let template = template("{{ x is none }}{{ y is defined }}{{ enable_thinking is defined }}");
    let record = json!({ "messages": [], "enable_thinking": null, "chat_template_kwargs": { "x": null } });
    let conversation = Conversation::from_json(&record).expect("a conversation");
    assert_eq!(template.render(&conversation, Ending::Complete).expect("rendered"), "TrueFalseFalse");
}

#[test]
fn conversations_with_tools_take_the_template_of_that_name() {
    let new = |source: &str| Some(source.to_owned());
    let template = ChatTemplate::new(new("plain"), new("tools"), Map::new()).expect("valid");
    let mut conversation = conversation(&json!([{ "role": "user", "content": "a" }]));
    assert_eq!(template.render(&conversation, Ending::Complete).expect("rendered"), "plain");
    conversation.tools = Some(json!([{ "name": "f" }]));
    assert_eq!(template.render(&conversation, Ending::Complete).expect("rendered"), "tools");
}

#[test]
fn templates_that_write_no_calls_are_found_by_rendering() {
    let source = "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}";
    assert!(!template(source).writes_calls());
    assert!(template("{% for m in messages %}{{ m | tojson }}{% endfor %}").writes_calls());
}

#[test]
fn the_time_of_a_mask_grows_with_the_conversation() {
    let source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";
    let turn =
        [json!({ "role": "user", "content": "a question" }), json!({ "role": "assistant", "content": "an answer" })];
    let messages: Vec<Value> = turn.iter().cloned().cycle().take(4000).collect();
    // Many messages before the first one of the user.
    let late = std::iter::repeat_n(turn[1].clone(), 2000).chain(messages.iter().take(2000).cloned());
    let late: Vec<Value> = late.collect();
    for messages in [messages, late] {
        let started = computed();
        bracketed(source, &messages.into());
        assert!((computed() - started).as_secs() < 5, "{:?}", computed() - started);
    }
}

//! Texts whose lengths are known: words of one token each.

const WORDS: [&str; 48] = [
    "horse", "river", "red", "night", "house", "water", "small", "green", "morning", "city", "road", "tree",
    "light", "stone", "winter", "music", "table", "letter", "ocean", "king", "field", "door", "silver",
    "garden", "bird", "story", "window", "dark", "engine", "glass", "wind", "paper", "mountain", "summer",
    "child", "heart", "gold", "star", "island", "bridge", "market", "north", "dream", "voice", "war", "song",
    "fire", "snow",
];

/// Tokens that every text gets besides: where it begins and where it ends.
const ADDED: usize = 2;

/// Lengths as people's requests have them: most short, one long.
pub(crate) const MIXED: [usize; 32] = [
    34, 12, 25, 48, 21, 202, 17, 28, 40, 23, 31, 62, 19, 36, 27, 8, 45, 30, 24, 88, 22, 33, 14, 52, 29, 70,
    26, 38, 32, 56, 35, 42,
];

pub(crate) fn of_length(tokens: usize, number: usize) -> String {
    let word = |at: usize| WORDS[(at * 7 + number * 11) % WORDS.len()];
    (0..tokens - ADDED).map(word).collect::<Vec<_>>().join(" ")
}

/// Short and long, odd and plain, in several scripts: what vectors are compared by.
pub(crate) fn varied() -> Vec<String> {
    let long = "The remuda is the herd of horses from which a rider takes a fresh mount. ".repeat(30);
    let texts = [
        "",
        "a",
        "hello world",
        "How do I reset my password?",
        "Ein Pferd wird auf der Koppel eingefangen.",
        "東京は今日も晴れです。",
        "Привет, как дела?",
        "😀🎉🐎 emoji only 🏇",
        "naïve café coöperate Ångström",
        "def step(now, event):\n    return [e for e in event if e.time <= now]\n",
        "SELECT id, name FROM workers WHERE state = 'silent' ORDER BY seen_at DESC LIMIT 10;",
        "1234567890 3.14159 -42 0x1F",
        "!!! ??? ... ,,, ;;;",
        "https://example.org/a/b?c=d&e=f#g",
        "A man is playing a guitar on stage in front of a large crowd.",
        "Someone performs music live.",
        &long,
    ];
    texts.into_iter().map(str::to_owned).collect()
}

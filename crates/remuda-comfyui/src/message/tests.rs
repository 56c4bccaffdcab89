use super::*;

fn text(kind: &str, data: &str) -> ComfyuiMessage {
    ComfyuiMessage::from_text(&format!(r#"{{"type": "{kind}", "data": {data}}}"#))
}

#[test]
fn recorded_run_is_parsed() {
    let recorded = [
        ("status", r#"{"status": {"exec_info": {"queue_remaining": 1}}, "sid": "err"}"#),
        ("execution_start", r#"{"prompt_id": "p", "timestamp": 1794728777790}"#),
        ("execution_cached", r#"{"nodes": ["1"], "prompt_id": "p", "timestamp": 1794728777791}"#),
        ("executing", r#"{"node": "2", "display_node": "2", "prompt_id": "p"}"#),
        ("executing", r#"{"node": "2"}"#),
        ("progress", r#"{"value": 1, "max": 6, "prompt_id": "p", "node": "2"}"#),
        (
            "progress_state",
            r#"{"prompt_id": "p", "nodes": {"1": {"value": 1.0, "max": 1.0, "state": "finished", "node_id": "1",
            "prompt_id": "p", "display_node_id": "1", "parent_node_id": null, "real_node_id": "1"},
            "2": {"value": 0, "max": 6, "state": "running"}}}"#,
        ),
        ("executed", r#"{"node": "1", "display_node": "1", "output": {"score": [NaN]}, "prompt_id": "p"}"#),
        ("execution_success", r#"{"prompt_id": "p", "timestamp": 1794728777799}"#),
        (
            "execution_error",
            r#"{"prompt_id": "p", "node_id": "3", "node_type": "SaveImage", "executed": ["2"],
            "exception_message": "Execution Blocked: research: blocked", "exception_type": "ExecutionBlocked", "traceback": [], "current_inputs": []}"#,
        ),
        (
            "execution_interrupted",
            r#"{"prompt_id": "p", "node_id": "2", "node_type": "X", "executed": [], "timestamp": 1}"#,
        ),
        ("executing", r#"{"node": null, "prompt_id": "p"}"#),
        ("feature_flags", r#"{"supports_preview_metadata": true}"#),
    ];
    let messages: Vec<ComfyuiMessage> = recorded.iter().map(|(kind, data)| text(kind, data)).collect();
    let words: Vec<String> = messages
        .iter()
        .map(|message| format!("{message:?}"))
        .map(|it| it.replace("Text(Some(\"p\"))", "p"))
        .collect();
    assert_eq!(
        words,
        [
            "Status { queue_remaining: 1 }",
            "Start { prompt: p }",
            "Cached { prompt: p, nodes: [\"1\"] }",
            "Executing { prompt: p, node: Some(\"2\") }",
            "Executing { prompt: Text(None), node: Some(\"2\") }",
            "Progress { prompt: p, node: Text(Some(\"2\")), value: 1.0, max: 6.0 }",
            "ProgressState { prompt: p, nodes: [(\"1\", NodeState { value: 1.0, max: 1.0, is_finished: true }), (\"2\", NodeState { value: 0.0, max: 6.0, is_finished: false })] }",
            "Executed { prompt: p, node: Text(Some(\"1\")), output: RawValue({\"score\": [null]}) }",
            "Success { prompt: p }",
            "Error { prompt: p, raised: NodeException { node_id: Text(Some(\"3\")), node_type: Text(Some(\"SaveImage\")), exception_type: Text(Some(\"ExecutionBlocked\")), exception_message: Text(Some(\"Execution Blocked: research: blocked\")) } }",
            "Interrupted { prompt: p }",
            "Executing { prompt: p, node: None }",
            "Other { kind: \"feature_flags\", prompt: Text(None) }",
        ]
    );
    assert_eq!(messages.iter().filter(|message| message.is_end_of("p")).count(), 1);
    assert!(!messages.iter().any(|message| message.is_end_of("q")));
}

/// Faults: W10.
#[test]
fn malformed_frames_never_panic() {
    for malformed in ["", "{", "[]", "null", r#"{"data": {}}"#, r#"{"type": 3}"#] {
        assert!(matches!(ComfyuiMessage::from_text(malformed), ComfyuiMessage::Malformed), "{malformed}");
    }
    for (kind, data) in [
        ("progress", r#"{"node": "1", "value": "x"}"#),
        ("status", "{}"),
        ("execution_cached", r#"{"nodes": 3}"#),
        ("executed", "{}"),
    ] {
        assert!(matches!(text(kind, data), ComfyuiMessage::Malformed), "{kind} {data}");
    }
    assert!(
        matches!(text("something_new", "[1, 2]"), ComfyuiMessage::Other { kind, .. } if kind == "something_new")
    );
    let frames: [&[u8]; 6] = [
        b"",
        b"\0\0\0",
        &[0, 0, 0, 1],
        &[0, 0, 0, 4, 0, 0, 0, 9, b'{'],
        &[0, 0, 0, 3, 255, 255, 255, 255],
        &[0, 0, 0, 4, 0, 0, 0, 1, b'x'],
    ];
    for malformed in frames {
        assert!(matches!(ComfyuiMessage::from_binary(malformed), ComfyuiMessage::Malformed), "{malformed:?}");
    }
    assert!(
        matches!(ComfyuiMessage::from_binary(&[0, 0, 0, 9, 1]), ComfyuiMessage::Other { kind, .. } if kind == "binary 9")
    );
}

#[test]
fn previews_are_parsed_with_and_without_metadata() {
    // The beginnings of recorded frames.
    let jpeg = [0, 0, 0, 1, 0, 0, 0, 1, 0xff, 0xd8, 0xff, 0xe0];
    let png = [0, 0, 0, 1, 0, 0, 0, 2, 0x89, 0x50, 0x4e, 0x47];
    for (frame, expected) in [(jpeg, "image/jpeg"), (png, "image/png")] {
        let ComfyuiMessage::Preview { prompt, mime, bytes, .. } = ComfyuiMessage::from_binary(&frame) else {
            panic!()
        };
        assert_eq!((prompt.0, &*mime, &bytes[..]), (None, expected, &frame[8..]));
    }
    let frame = |mime: &str| {
        let about = format!(
            r#"{{"node_id": "2", "prompt_id": "p", "display_node_id": "2", "parent_node_id": null, "image_type": "{mime}"}}"#
        );
        [&[0, 0, 0, 4], &(about.len() as u32).to_be_bytes()[..], about.as_bytes(), b"pixels"].concat()
    };
    for (recorded, expected) in
        [("image/png", "image/png"), ("image/jpeg", "image/jpeg"), ("text/html", "image/jpeg")]
    {
        let message = ComfyuiMessage::from_binary(&frame(recorded));
        assert_eq!(message.prompt(), Some("p"));
        let ComfyuiMessage::Preview { node, mime, bytes, .. } = message else { panic!() };
        assert_eq!((node.0.as_deref(), &*mime, &bytes[..]), (Some("2"), expected, &b"pixels"[..]));
    }
}

#[test]
fn progress_text_of_all_versions_is_parsed() {
    let frame = [0, 0, 0, 3, 0, 0, 0, 1, 0x32, 0x32, 0x34, 0x39, 0x32];
    let ComfyuiMessage::Text { node, text } = ComfyuiMessage::from_binary(&frame) else { panic!() };
    assert_eq!((&*node, &*text), ("2", "2492"));
}
